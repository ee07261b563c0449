//! One output that several tasks fill, each at places of its own.

use crate::element::Element;
use crate::lanes::Lanes;
use std::marker::PhantomData;

/// Access to a slice from many threads, each to places that no other touches.
pub struct Shared<'a, T = f32> {
    at: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: callers promise places that no other task touches.
unsafe impl<T: Element> Sync for Shared<'_, T> {}

impl<'a, T: Element> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
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
        unsafe { T::store(value, self.at.add(at)) }
    }

    /// Reads sixteen values back.
    ///
    /// # Safety
    /// As [`Shared::store`].
    #[inline(always)]
    pub(crate) unsafe fn load<V: Lanes>(&self, at: usize) -> V {
        debug_assert!(at + 16 <= self.len, "load {at} of {}", self.len);
        // SAFETY: the caller's contract.
        unsafe { T::load(self.at.add(at)) }
    }

    /// Writes one value.
    ///
    /// # Safety
    /// As [`Shared::store`].
    #[inline(always)]
    pub(crate) unsafe fn set(&self, value: T, at: usize) {
        debug_assert!(at < self.len, "store {at} of {}", self.len);
        // SAFETY: the caller's contract.
        unsafe { *self.at.add(at) = value };
    }
}

impl Shared<'_> {
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
