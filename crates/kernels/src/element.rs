//! What activations are stored as.

use crate::conv::DirectSums;
use crate::lanes::Lanes;
use crate::linear::LinearSums;
use half::bf16;

/// A type that activations are stored as, f32 or bf16. Arithmetic is in f32: reading is exact, writing rounds to the
/// nearest, ties to even.
pub trait Element: Stored + DirectSums + LinearSums + Copy + Send + Sync + 'static {
    /// The nearest value of this type.
    fn from_f32(value: f32) -> Self;

    /// The same value.
    fn to_f32(self) -> f32;
}

/// Sixteen values between memory and lanes; it also keeps other crates from adding elements.
pub trait Stored: Sized {
    /// # Safety
    /// As [`Lanes::load`].
    unsafe fn load<V: Lanes>(from: *const Self) -> V;

    /// # Safety
    /// As [`Lanes::store`].
    unsafe fn store<V: Lanes>(value: V, to: *mut Self);

    /// What storing and loading makes of values.
    ///
    /// # Safety
    /// As [`Lanes::zero`].
    unsafe fn rounded<V: Lanes>(value: V) -> V;
}

impl Element for f32 {
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

// SAFETY (all blocks below): the caller's contract.
impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        unsafe { V::load(from) }
    }

    #[inline(always)]
    unsafe fn store<V: Lanes>(value: V, to: *mut Self) {
        unsafe { value.store(to) }
    }

    #[inline(always)]
    unsafe fn rounded<V: Lanes>(value: V) -> V {
        value
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        unsafe { V::load_bf16(from) }
    }

    #[inline(always)]
    unsafe fn store<V: Lanes>(value: V, to: *mut Self) {
        unsafe { value.store_bf16(to) }
    }

    #[inline(always)]
    unsafe fn rounded<V: Lanes>(value: V) -> V {
        unsafe { value.round_bf16() }
    }
}
