//! Sixteen f32 lanes: one AVX-512 register, two AVX2 registers, or an array.
//!
//! Kernels are written once over [`Lanes`] and inlined into entry points that enable the instruction set, so the
//! methods here become single instructions.

use crate::element::{Element, Stored};
use half::bf16;

/// Sixteen lanes.
///
/// # Safety
/// Every method may only run on a CPU that has the instruction set of the implementing type; [`crate::Isa`] is the
/// proof. Pointers must be valid for sixteen floats; no alignment is needed.
pub trait Lanes: Copy {
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
    /// Sixteen bf16 values, exactly.
    unsafe fn load_bf16(from: *const bf16) -> Self;
    /// The nearest bf16 values, ties to even, as [`bf16::from_f32`]: to the bit on every set, denormals and NaN included.
    unsafe fn store_bf16(self, to: *mut bf16);
    /// The same values in lanes: what is read back once they are stored.
    unsafe fn round_bf16(self) -> Self;
}

/// Plain Rust; the fallback and the reference.
#[derive(Clone, Copy)]
pub(crate) struct Portable(pub(crate) [f32; 16]);

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
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: valid for sixteen values by the trait's contract.
        Self(unsafe { from.cast::<[bf16; 16]>().read_unaligned() }.map(bf16::to_f32))
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        // SAFETY: valid for sixteen values by the trait's contract.
        unsafe { to.cast::<[bf16; 16]>().write_unaligned(self.0.map(bf16::from_f32)) }
    }
    #[inline(always)]
    unsafe fn round_bf16(self) -> Self {
        Self(self.0.map(|value| bf16::from_f32(value).to_f32()))
    }
}

/// Sixteen values of `from`, starting at `at`. Bounds are checked in builds with debug assertions.
#[inline(always)]
pub(crate) unsafe fn load<V: Lanes>(from: &[impl Element], at: usize) -> V {
    debug_assert!(at + 16 <= from.len(), "load {at} of {}", from.len());
    // SAFETY: the caller keeps `at` in bounds.
    unsafe { <_ as Stored>::load(from.as_ptr().add(at)) }
}

/// One value of `from` in all lanes.
#[inline(always)]
pub(crate) unsafe fn splat<V: Lanes>(from: &[f32], at: usize) -> V {
    debug_assert!(at < from.len(), "splat {at} of {}", from.len());
    // SAFETY: the caller keeps `at` in bounds.
    unsafe { V::splat(*from.as_ptr().add(at)) }
}

#[inline(always)]
pub(crate) unsafe fn store<V: Lanes>(value: V, to: &mut [impl Element], at: usize) {
    debug_assert!(at + 16 <= to.len(), "store {at} of {}", to.len());
    // SAFETY: the caller keeps `at` in bounds.
    unsafe { <_ as Stored>::store(value, to.as_mut_ptr().add(at)) }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use half::bf16;
    use std::arch::x86_64::*;

    /// Two registers of eight.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(pub(crate) __m256, pub(crate) __m256);

    /// The bits of the nearest bf16, below sixteen zeros: half of the last place and the parity of the bit above it are
    /// added before the cut. A NaN stays one.
    #[inline(always)]
    unsafe fn rounded(x: __m256) -> __m256i {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let bits = _mm256_castps_si256(x);
            let high = _mm256_srli_epi32::<16>(bits);
            let half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, _mm256_set1_epi32(1)));
            let near = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
            let quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
            _mm256_blendv_epi8(near, quiet, _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x)))
        }
    }

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
        #[inline(always)]
        unsafe fn load_bf16(from: *const bf16) -> Self {
            unsafe {
                let half = |at| _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(at).cast()));
                let (low, high) = (half(0), half(8));
                Self(
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
                )
            }
        }
        #[inline(always)]
        unsafe fn store_bf16(self, to: *mut bf16) {
            unsafe {
                // Packing works on halves of the registers; the permutation puts them in order.
                let both = _mm256_packus_epi32(rounded(self.0), rounded(self.1));
                _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(both));
            }
        }
        #[inline(always)]
        unsafe fn round_bf16(self) -> Self {
            unsafe {
                Self(
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(rounded(self.0))),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(rounded(self.1))),
                )
            }
        }
    }

    /// As `rounded`; the CPU's own conversion would drop denormals.
    #[inline(always)]
    unsafe fn rounded_wide(x: __m512) -> __m512i {
        // SAFETY: the caller guarantees AVX-512F.
        unsafe {
            let bits = _mm512_castps_si512(x);
            let high = _mm512_srli_epi32::<16>(bits);
            let half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(high, _mm512_set1_epi32(1)));
            let near = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            _mm512_mask_or_epi32(near, is_nan, high, _mm512_set1_epi32(0x40))
        }
    }

    /// One register of sixteen.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(pub(crate) __m512);

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
        #[inline(always)]
        unsafe fn load_bf16(from: *const bf16) -> Self {
            unsafe {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
            }
        }
        #[inline(always)]
        unsafe fn store_bf16(self, to: *mut bf16) {
            unsafe {
                _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(rounded_wide(self.0)));
            }
        }
        #[inline(always)]
        unsafe fn round_bf16(self) -> Self {
            unsafe { Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(rounded_wide(self.0)))) }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::{Isa, dispatch};
    use crate::lanes::{Lanes, load, store};
    use half::bf16;

    dispatch! {
        unsafe fn round = round_with(from: &[f32], to: &mut [bf16])
    }

    unsafe fn round_with<V: Lanes>(from: &[f32], to: &mut [bf16]) {
        // SAFETY: sixteen values each.
        unsafe { store(load::<V>(from, 0), to, 0) }
    }

    dispatch! {
        unsafe fn widen = widen_with(from: &[bf16], to: &mut [f32])
    }

    unsafe fn widen_with<V: Lanes>(from: &[bf16], to: &mut [f32]) {
        // SAFETY: sixteen values each.
        unsafe { store(load::<V>(from, 0), to, 0) }
    }

    /// Every bf16 with what may stand behind it: ties, their neighbours, denormals, infinities and NaN.
    #[test]
    fn every_set_rounds_to_the_nearest_bf16_and_reads_it_exactly() {
        let rests = [0_u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        for isa in Isa::available() {
            for first in (0..1 << 16).step_by(16) {
                for rest in rests {
                    let from: [f32; 16] = std::array::from_fn(|i| f32::from_bits((first + i as u32) << 16 | rest));
                    let (mut to, mut back) = ([bf16::ZERO; 16], [0.0_f32; 16]);
                    // SAFETY: sixteen values each.
                    unsafe { round(isa, &from, &mut to) };
                    assert_eq!(to.map(bf16::to_bits), from.map(|v| bf16::from_f32(v).to_bits()), "{isa} {from:?}");
                    // SAFETY: as above.
                    unsafe { widen(isa, &to, &mut back) };
                    assert_eq!(back.map(f32::to_bits), to.map(|v| u32::from(v.to_bits()) << 16), "{isa} {from:?}");
                }
            }
        }
    }
}
