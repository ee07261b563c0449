//! Aligned buffers from memory that is used again: a training step asks for the same sizes every time, and pages that
//! the system would clear anew at each step cost as much as the arithmetic on them.
//!
//! Large slabs are taken from the system once and kept; buffers are cut from the oldest that has room, at the lowest place that
//! fits, and neighbours join again when they are dropped. So the last slab is touched no further than is needed.

use crate::element::Element;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Mutex;

/// One cache line: buffers start and end at lines.
const LINE: usize = 64;
/// Bytes of a slab, unless a buffer is larger. Pages that were never touched take no memory.
const SLAB: usize = 1 << 28;
/// Slabs start at a huge page.
const SLAB_ALIGN: usize = 1 << 21;

/// `len` floats, aligned to a cache line.
pub struct Buffer<T: Element = f32> {
    place: Place,
    len: usize,
    values: PhantomData<T>,
}

/// Bytes of a slab.
#[derive(Clone, Copy)]
struct Place {
    at: NonNull<u8>,
    size: usize,
    /// Number of the slab: only places of one slab join.
    slab: usize,
}

impl Place {
    fn start(&self) -> usize {
        self.at.addr().get()
    }
}

// SAFETY: a place belongs to one buffer or to the pool, and floats may be sent and shared.
unsafe impl Send for Place {}
unsafe impl Sync for Place {}

struct Pool {
    /// Free places by slab, then by address.
    free: BTreeMap<(usize, usize), Place>,
    /// Slabs there are.
    slabs: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { free: BTreeMap::new(), slabs: 0 });

fn pool() -> std::sync::MutexGuard<'static, Pool> {
    // A panic elsewhere cannot leave the pool half changed.
    POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Buffer {
    /// f32 values that are arbitrary: write every one of them.
    pub fn new(len: usize) -> Self {
        Self::of(len)
    }

    /// A buffer of zeros.
    pub fn zeroed(len: usize) -> Self {
        let mut buffer = Self::new(len);
        buffer.fill(0.0);
        buffer
    }
}

impl<T: Element> Buffer<T> {
    /// Values of any type that are arbitrary: write every one of them.
    pub fn of(len: usize) -> Self {
        let size = (len * size_of::<T>()).next_multiple_of(LINE).max(LINE);
        Self { place: pool().take(size), len, values: PhantomData }
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        pool().give(self.place);
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` aligned floats fit into the place, and slabs are initialised.
        unsafe { std::slice::from_raw_parts(self.place.at.as_ptr().cast(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.place.at.as_ptr().cast(), self.len) }
    }
}

impl Pool {
    /// The lowest place that fits, in the oldest slab that has one.
    fn take(&mut self, size: usize) -> Place {
        let fitting = self.free.values().find(|free| free.size >= size).copied();
        let free = fitting.unwrap_or_else(|| {
            self.slabs += 1;
            new_slab(size.max(SLAB), self.slabs)
        });
        self.free.remove(&(free.slab, free.start()));
        if free.size > size {
            // SAFETY: the rest is inside the slab.
            let rest = unsafe { free.at.add(size) };
            self.keep(Place { at: rest, size: free.size - size, slab: free.slab });
        }
        Place { size, ..free }
    }

    fn keep(&mut self, free: Place) {
        self.free.insert((free.slab, free.start()), free);
    }

    /// Takes a place back and joins it with its free neighbours.
    fn give(&mut self, place: Place) {
        let (mut free, slab) = (place, place.slab);
        let before = self.free.range((slab, 0)..(slab, place.start())).next_back().map(|(_, before)| *before);
        if let Some(before) = before.filter(|before| before.start() + before.size == place.start()) {
            self.free.remove(&(slab, before.start()));
            free = Place { size: before.size + free.size, ..before };
        }
        if let Some(after) = self.free.remove(&(slab, place.start() + place.size)) {
            free.size += after.size;
        }
        self.keep(free);
    }
}

/// Zeroed memory from the system, on huge pages where it has them.
fn new_slab(size: usize, number: usize) -> Place {
    // Without an alignment of its own, so that the system gives pages that are zero already and not touched.
    let layout = Layout::from_size_align(size + SLAB_ALIGN, 1).expect("a slab is smaller than the address space");
    // SAFETY: the size is not zero.
    let start = unsafe { alloc_zeroed(layout) };
    let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
    // SAFETY: at most SLAB_ALIGN bytes further, which were asked for.
    let at = unsafe { start.add(start.align_offset(SLAB_ALIGN)) };
    #[cfg(target_os = "linux")]
    // SAFETY: the range is ours; advice changes no values, and a refusal costs speed only.
    unsafe {
        libc::madvise(at.as_ptr().cast(), size, libc::MADV_HUGEPAGE);
    }
    Place { at, size, slab: number }
}

#[cfg(test)]
mod tests {
    use super::{Buffer, LINE, Place, Pool};
    use std::collections::BTreeMap;
    use std::ptr::NonNull;

    /// A pool over one slab of `lines` lines that is never read.
    fn pool(lines: usize) -> Pool {
        let mut pool = Pool { free: BTreeMap::new(), slabs: 2 };
        pool.keep(Place { at: NonNull::<[u8; LINE]>::dangling().cast(), size: lines * LINE, slab: 2 });
        pool
    }

    fn sizes(pool: &Pool) -> Vec<usize> {
        pool.free.values().map(|free| free.size / LINE).collect()
    }

    #[test]
    fn places_are_cut_and_joined() {
        let mut pool = pool(10);
        let (a, b, c) = (pool.take(2 * LINE), pool.take(3 * LINE), pool.take(LINE));
        assert_eq!(sizes(&pool), [4]);
        pool.give(b);
        assert_eq!(sizes(&pool), [3, 4]);
        // The lowest place that fits.
        let d = pool.take(LINE);
        assert_eq!(d.at, b.at);
        assert_eq!(sizes(&pool), [2, 4]);
        for place in [a, c, d] {
            pool.give(place);
        }
        assert_eq!(sizes(&pool), [10]);
    }

    #[test]
    fn places_of_two_slabs_do_not_join() {
        let mut pool = pool(2);
        let first = pool.take(2 * LINE);
        let second = Place { at: unsafe { first.at.byte_add(2 * LINE) }, size: LINE, slab: 3 };
        pool.give(second);
        pool.give(first);
        assert_eq!(sizes(&pool), [2, 1]);
    }

    #[test]
    fn the_oldest_slab_that_has_room_is_filled_first() {
        let mut pool = pool(4);
        let newest = pool.take(4 * LINE);
        // An older slab at a higher address.
        let oldest = Place { at: unsafe { newest.at.byte_add(8 * LINE) }, size: 2 * LINE, slab: 1 };
        pool.give(oldest);
        pool.give(newest);
        let [one, large, last] = [1, 2, 1].map(|lines| pool.take(lines * LINE));
        assert_eq!([one.slab, large.slab, last.slab], [1, 2, 1]);
        assert_eq!((one.at, large.at), (oldest.at, newest.at));
    }

    #[test]
    fn buffers_are_aligned_and_apart() {
        let (mut a, mut b) = (Buffer::new(17), Buffer::zeroed(5));
        a.fill(1.0);
        assert!(b.iter().all(|&v| v == 0.0));
        b.fill(2.0);
        assert!(a.iter().all(|&v| v == 1.0) && a.len() == 17 && b.len() == 5);
        assert_eq!((a.as_ptr() as usize % LINE, b.as_ptr() as usize % LINE), (0, 0));
        assert!(Buffer::new(0).is_empty());
    }
}
