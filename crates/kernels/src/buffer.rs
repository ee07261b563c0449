//! Aligned buffers from memory that is used again: a training step asks for the same sizes every time, and pages that
//! the system would clear anew at each step cost as much as the arithmetic on them.
//!
//! Large slabs are taken from the system once and kept; buffers are cut from them at the lowest place that fits, and
//! neighbours join again when they are dropped.

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
    /// Address of the slab: only places of one slab join.
    slab: usize,
}

// SAFETY: a place belongs to one buffer or to the pool, and floats may be sent and shared.
unsafe impl Send for Place {}
unsafe impl Sync for Place {}

/// Free places of all slabs, by address.
struct Pool(BTreeMap<usize, Place>);

static POOL: Mutex<Pool> = Mutex::new(Pool(BTreeMap::new()));

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
    /// The lowest place that fits.
    fn take(&mut self, size: usize) -> Place {
        let fitting = self.0.values().find(|free| free.size >= size).copied();
        let free = fitting.unwrap_or_else(|| new_slab(size.max(SLAB)));
        self.0.remove(&free.at.addr().get());
        if free.size > size {
            // SAFETY: the rest is inside the slab.
            let rest = unsafe { free.at.add(size) };
            self.0.insert(rest.addr().get(), Place { at: rest, size: free.size - size, slab: free.slab });
        }
        Place { size, ..free }
    }

    /// Takes a place back and joins it with its free neighbours.
    fn give(&mut self, place: Place) {
        let (mut free, start) = (place, place.at.addr().get());
        let before = self.0.range(..start).next_back().map(|(_, before)| *before);
        if let Some(before) = before.filter(|b| b.slab == free.slab && b.at.addr().get() + b.size == start) {
            self.0.remove(&before.at.addr().get());
            free = Place { size: before.size + free.size, ..before };
        }
        let end = start + place.size;
        if let Some(after) = self.0.get(&end).copied().filter(|after| after.slab == free.slab) {
            self.0.remove(&end);
            free.size += after.size;
        }
        self.0.insert(free.at.addr().get(), free);
    }
}

/// Zeroed memory from the system, on huge pages where it has them.
fn new_slab(size: usize) -> Place {
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
    Place { at, size, slab: at.addr().get() }
}

#[cfg(test)]
mod tests {
    use super::{Buffer, LINE, Place, Pool};
    use std::collections::BTreeMap;
    use std::ptr::NonNull;

    /// A pool over one slab of `lines` lines that is never read.
    fn pool(lines: usize) -> Pool {
        let at = NonNull::<[u8; LINE]>::dangling().cast();
        let slab = at.addr().get();
        Pool(BTreeMap::from([(slab, Place { at, size: lines * LINE, slab })]))
    }

    fn sizes(pool: &Pool) -> Vec<usize> {
        pool.0.values().map(|free| free.size / LINE).collect()
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
        let second = Place { at: unsafe { first.at.byte_add(2 * LINE) }, size: LINE, slab: first.slab + 2 * LINE };
        pool.give(second);
        pool.give(first);
        assert_eq!(sizes(&pool), [2, 1]);
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
