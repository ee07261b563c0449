//! One output that several tasks fill, each at places of its own.

use crate::lanes::Lanes;
use std::marker::PhantomData;

/// Access to a slice from many threads, each to places that no other touches.
pub(crate) struct Shared<'a> {
    at: *mut f32,
    len: usize,
    slice: PhantomData<&'a mut [f32]>,
}

// SAFETY: callers promise places that no other task touches.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(crate) fn new(slice: &'a mut [f32]) -> Self {
        Self { at: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Writes sixteen values.
    ///
    /// # Safety
    /// The places are inside the slice and belong to the calling task alone.
    #[inline(always)]
    pub(crate) unsafe fn store<V: Lanes>(&self, value: V, at: usize) {
        debug_assert!(at + 16 <= self.len, "store {at} of {}", self.len);
        // SAFETY: the caller's contract.
        unsafe { value.store(self.at.add(at)) }
    }

    /// Reads sixteen values back.
    ///
    /// # Safety
    /// As [`Shared::store`].
    #[inline(always)]
    pub(crate) unsafe fn load<V: Lanes>(&self, at: usize) -> V {
        debug_assert!(at + 16 <= self.len, "load {at} of {}", self.len);
        // SAFETY: the caller's contract.
        unsafe { V::load(self.at.add(at)) }
    }

    /// Writes one value, or adds to the one that is there.
    ///
    /// # Safety
    /// As [`Shared::store`].
    #[inline(always)]
    pub(crate) unsafe fn update(&self, value: f32, at: usize, accumulate: bool) {
        debug_assert!(at < self.len, "store {at} of {}", self.len);
        // SAFETY: the caller's contract.
        unsafe {
            let place = self.at.add(at);
            *place = if accumulate { *place + value } else { value };
        }
    }
}
