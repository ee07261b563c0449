//! Sixteen f32 lanes: one AVX-512 register, two AVX2 registers, or an array.
//!
//! Kernels are written once over [`Lanes`] and inlined into entry points that enable the instruction set, so the
//! methods here become single instructions.

/// Sixteen lanes.
///
/// # Safety
/// Every method may only run on a CPU that has the instruction set of the implementing type; [`crate::Isa`] is the
/// proof. Pointers must be valid for sixteen floats; no alignment is needed.
pub(crate) trait Lanes: Copy {
    /// Registers of sixteen lanes: they hold the accumulators of a product tile.
    const REGISTERS: usize;

    unsafe fn zero() -> Self;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// self·a + b
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// `self` where it is larger, else `other`: where either is NaN, too.
    unsafe fn max(self, other: Self) -> Self;
    /// self where gate > 0, else 0
    unsafe fn where_positive(self, gate: Self) -> Self;
    /// 2^self for integers from −126 to 127
    unsafe fn power_of_two(self) -> Self;
}

/// Plain Rust; the fallback and the reference.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 16]);

impl Lanes for Portable {
    const REGISTERS: usize = 6;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; 16])
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 16])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: valid for sixteen floats by the trait's contract.
        Self(unsafe { from.cast::<[f32; 16]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: valid for sixteen floats by the trait's contract.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] - other.0[i]))
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * other.0[i]))
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] / other.0[i]))
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * a.0[i] + b.0[i]))
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] }))
    }
    #[inline(always)]
    unsafe fn where_positive(self, gate: Self) -> Self {
        Self(std::array::from_fn(|i| if gate.0[i] > 0.0 { self.0[i] } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        Self(std::array::from_fn(|i| f32::from_bits(((self.0[i] as i32 + 127) as u32) << 23)))
    }
}

/// Sixteen values of `from`, starting at `at`. Bounds are checked in builds with debug assertions.
#[inline(always)]
pub(crate) unsafe fn load<V: Lanes>(from: &[f32], at: usize) -> V {
    debug_assert!(at + 16 <= from.len(), "load {at} of {}", from.len());
    // SAFETY: the caller keeps `at` in bounds.
    unsafe { V::load(from.as_ptr().add(at)) }
}

/// One value of `from` in all lanes.
#[inline(always)]
pub(crate) unsafe fn splat<V: Lanes>(from: &[f32], at: usize) -> V {
    debug_assert!(at < from.len(), "splat {at} of {}", from.len());
    // SAFETY: the caller keeps `at` in bounds.
    unsafe { V::splat(*from.as_ptr().add(at)) }
}

#[inline(always)]
pub(crate) unsafe fn store<V: Lanes>(value: V, to: &mut [f32], at: usize) {
    debug_assert!(at + 16 <= to.len(), "store {at} of {}", to.len());
    // SAFETY: the caller keeps `at` in bounds.
    unsafe { value.store(to.as_mut_ptr().add(at)) }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    /// Two registers of eight.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256, __m256);

    // SAFETY (all blocks): the caller guarantees AVX2 and FMA, and valid pointers.
    impl Lanes for Avx2 {
        const REGISTERS: usize = 8;

        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self(_mm256_setzero_ps(), _mm256_setzero_ps()) }
        }
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe {
                _mm256_storeu_ps(to, self.0);
                _mm256_storeu_ps(to.add(8), self.1);
            }
        }
        #[inline(always)]
        unsafe fn add(self, o: Self) -> Self {
            unsafe { Self(_mm256_add_ps(self.0, o.0), _mm256_add_ps(self.1, o.1)) }
        }
        #[inline(always)]
        unsafe fn sub(self, o: Self) -> Self {
            unsafe { Self(_mm256_sub_ps(self.0, o.0), _mm256_sub_ps(self.1, o.1)) }
        }
        #[inline(always)]
        unsafe fn mul(self, o: Self) -> Self {
            unsafe { Self(_mm256_mul_ps(self.0, o.0), _mm256_mul_ps(self.1, o.1)) }
        }
        #[inline(always)]
        unsafe fn div(self, o: Self) -> Self {
            unsafe { Self(_mm256_div_ps(self.0, o.0), _mm256_div_ps(self.1, o.1)) }
        }
        #[inline(always)]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            unsafe { Self(_mm256_fmadd_ps(self.0, a.0, b.0), _mm256_fmadd_ps(self.1, a.1, b.1)) }
        }
        #[inline(always)]
        unsafe fn max(self, o: Self) -> Self {
            unsafe { Self(_mm256_max_ps(self.0, o.0), _mm256_max_ps(self.1, o.1)) }
        }
        #[inline(always)]
        unsafe fn where_positive(self, gate: Self) -> Self {
            unsafe {
                let zero = _mm256_setzero_ps();
                let low = _mm256_cmp_ps::<_CMP_GT_OQ>(gate.0, zero);
                let high = _mm256_cmp_ps::<_CMP_GT_OQ>(gate.1, zero);
                Self(_mm256_and_ps(self.0, low), _mm256_and_ps(self.1, high))
            }
        }
        #[inline(always)]
        unsafe fn power_of_two(self) -> Self {
            unsafe {
                let low = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
                let high = _mm256_add_epi32(_mm256_cvtps_epi32(self.1), _mm256_set1_epi32(127));
                Self(
                    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(low)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(high)),
                )
            }
        }
    }

    /// One register of sixteen.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(__m512);

    // SAFETY (all blocks): the caller guarantees AVX-512F, and valid pointers.
    impl Lanes for Avx512 {
        const REGISTERS: usize = 32;

        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self(_mm512_setzero_ps()) }
        }
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            unsafe { Self(_mm512_set1_ps(value)) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { Self(_mm512_loadu_ps(from)) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        unsafe fn add(self, o: Self) -> Self {
            unsafe { Self(_mm512_add_ps(self.0, o.0)) }
        }
        #[inline(always)]
        unsafe fn sub(self, o: Self) -> Self {
            unsafe { Self(_mm512_sub_ps(self.0, o.0)) }
        }
        #[inline(always)]
        unsafe fn mul(self, o: Self) -> Self {
            unsafe { Self(_mm512_mul_ps(self.0, o.0)) }
        }
        #[inline(always)]
        unsafe fn div(self, o: Self) -> Self {
            unsafe { Self(_mm512_div_ps(self.0, o.0)) }
        }
        #[inline(always)]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            unsafe { Self(_mm512_fmadd_ps(self.0, a.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn max(self, o: Self) -> Self {
            unsafe { Self(_mm512_max_ps(self.0, o.0)) }
        }
        #[inline(always)]
        unsafe fn where_positive(self, gate: Self) -> Self {
            unsafe {
                let positive = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(gate.0, _mm512_setzero_ps());
                Self(_mm512_maskz_mov_ps(positive, self.0))
            }
        }
        #[inline(always)]
        unsafe fn power_of_two(self) -> Self {
            unsafe {
                let biased = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
            }
        }
    }
}
