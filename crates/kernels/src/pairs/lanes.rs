//! Sixteen pairs of bf16 values and their products, summed in f32.
//!
//! A product of two bf16 values is exact in f32, so every set adds the same two numbers in the same order: that of
//! `vdpbf16ps`, the second of a pair before the first. What differs is that this instruction takes denormals for zeros.

use crate::lanes::{Lanes, Portable};
use half::bf16;

/// Lanes of sums, and pairs to multiply.
///
/// # Safety
/// As [`Lanes`]. `load_pairs` reads sixteen, `splat_pair` one.
pub(crate) trait PairLanes {
    /// Sixteen sums.
    type Sum: Lanes;
    /// Sixteen pairs.
    type Pairs: Copy;
    /// Sums that fit into the registers beside the pairs.
    const SUMS: usize;

    unsafe fn load_pairs(from: *const bf16) -> Self::Pairs;
    /// One pair in all lanes.
    unsafe fn splat_pair(from: *const bf16) -> Self::Pairs;
    /// (sum + a₁·b₁) + a₀·b₀
    unsafe fn dot(sum: Self::Sum, a: Self::Pairs, b: Self::Pairs) -> Self::Sum;
}

// SAFETY (all blocks): the caller's contract.
impl PairLanes for Portable {
    type Sum = Self;
    type Pairs = [Self; 2];
    const SUMS: usize = 4;

    #[inline(always)]
    unsafe fn load_pairs(from: *const bf16) -> [Self; 2] {
        let values = unsafe { from.cast::<[bf16; 32]>().read_unaligned() };
        [0, 1].map(|odd| Self(std::array::from_fn(|lane| values[2 * lane + odd].to_f32())))
    }

    #[inline(always)]
    unsafe fn splat_pair(from: *const bf16) -> [Self; 2] {
        unsafe { [Self::splat((*from).to_f32()), Self::splat((*from.add(1)).to_f32())] }
    }

    #[inline(always)]
    unsafe fn dot(sum: Self, a: [Self; 2], b: [Self; 2]) -> Self {
        unsafe { a[0].fma(b[0], a[1].fma(b[1], sum)) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Native;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::PairLanes;
    use crate::lanes::{Avx2, Avx512, Lanes};
    use half::bf16;
    use std::arch::x86_64::*;

    /// AVX-512 with products of bf16.
    pub(crate) struct Native;

    // SAFETY (all blocks): the caller guarantees AVX512-BF16, and valid pointers.
    impl PairLanes for Native {
        type Sum = Avx512;
        type Pairs = __m512bh;
        const SUMS: usize = 24;

        #[inline(always)]
        unsafe fn load_pairs(from: *const bf16) -> __m512bh {
            unsafe { from.cast::<__m512bh>().read_unaligned() }
        }

        #[inline(always)]
        unsafe fn splat_pair(from: *const bf16) -> __m512bh {
            unsafe { std::mem::transmute(_mm512_set1_epi32(from.cast::<i32>().read_unaligned())) }
        }

        #[inline(always)]
        unsafe fn dot(sum: Avx512, a: __m512bh, b: __m512bh) -> Avx512 {
            unsafe { Avx512(_mm512_dpbf16_ps(sum.0, a, b)) }
        }
    }

    /// The firsts of sixteen pairs and the seconds.
    #[inline(always)]
    unsafe fn split512(pairs: __m512i) -> [Avx512; 2] {
        unsafe {
            let second = _mm512_and_si512(pairs, _mm512_set1_epi32(-0x1_0000));
            [_mm512_slli_epi32::<16>(pairs), second].map(|bits| Avx512(_mm512_castsi512_ps(bits)))
        }
    }

    // SAFETY (all blocks): the caller guarantees AVX-512F, and valid pointers.
    impl PairLanes for Avx512 {
        type Sum = Self;
        type Pairs = [Self; 2];
        const SUMS: usize = 16;

        #[inline(always)]
        unsafe fn load_pairs(from: *const bf16) -> [Self; 2] {
            unsafe { split512(_mm512_loadu_si512(from.cast())) }
        }

        #[inline(always)]
        unsafe fn splat_pair(from: *const bf16) -> [Self; 2] {
            unsafe { split512(_mm512_set1_epi32(from.cast::<i32>().read_unaligned())) }
        }

        #[inline(always)]
        unsafe fn dot(sum: Self, a: [Self; 2], b: [Self; 2]) -> Self {
            unsafe { a[0].fma(b[0], a[1].fma(b[1], sum)) }
        }
    }

    /// The firsts of eight pairs and the seconds.
    #[inline(always)]
    unsafe fn split256(pairs: __m256i) -> [__m256; 2] {
        unsafe {
            let second = _mm256_and_si256(pairs, _mm256_set1_epi32(-0x1_0000));
            [_mm256_slli_epi32::<16>(pairs), second].map(|bits| _mm256_castsi256_ps(bits))
        }
    }

    // SAFETY (all blocks): the caller guarantees AVX2 and FMA, and valid pointers.
    impl PairLanes for Avx2 {
        type Sum = Self;
        type Pairs = [Self; 2];
        const SUMS: usize = 4;

        #[inline(always)]
        unsafe fn load_pairs(from: *const bf16) -> [Self; 2] {
            unsafe {
                let [low, high] = [0, 16].map(|at| split256(_mm256_loadu_si256(from.add(at).cast())));
                [Self(low[0], high[0]), Self(low[1], high[1])]
            }
        }

        #[inline(always)]
        unsafe fn splat_pair(from: *const bf16) -> [Self; 2] {
            unsafe {
                let [first, second] = split256(_mm256_set1_epi32(from.cast::<i32>().read_unaligned()));
                [Self(first, first), Self(second, second)]
            }
        }

        #[inline(always)]
        unsafe fn dot(sum: Self, a: [Self; 2], b: [Self; 2]) -> Self {
            unsafe { a[0].fma(b[0], a[1].fma(b[1], sum)) }
        }
    }
}

/// Defines `$name`, which runs the generic `$kernel::<V>`, or `$kernel::<V, T>` for any elements T, with the pairs of an
/// instruction set, its first argument.
macro_rules! dispatch_pairs {
    (
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident $(<$($t:ident),+>)? = $kernel:ident($($arg:ident: $type:ty),* $(,)?)
    ) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)] // as many as the kernel has, and the set
        #[inline]
        $vis unsafe fn $name $(<$($t: crate::Element),+>)? (isa: crate::isa::Isa, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[allow(clippy::too_many_arguments)] // as many as the kernel has
                #[target_feature(enable = "avx512f,avx512bf16")]
                unsafe fn native $(<$($t: crate::Element),+>)? ($($arg: $type),*) {
                    unsafe { $kernel::<crate::pairs::lanes::Native $(, $($t),+)?>($($arg),*) }
                }
                #[allow(clippy::too_many_arguments)] // as above
                #[target_feature(enable = "avx512f")]
                unsafe fn avx512 $(<$($t: crate::Element),+>)? ($($arg: $type),*) {
                    unsafe { $kernel::<crate::lanes::Avx512 $(, $($t),+)?>($($arg),*) }
                }
                #[allow(clippy::too_many_arguments)] // as above
                #[target_feature(enable = "avx2,fma")]
                unsafe fn avx2 $(<$($t: crate::Element),+>)? ($($arg: $type),*) {
                    unsafe { $kernel::<crate::lanes::Avx2 $(, $($t),+)?>($($arg),*) }
                }
                // SAFETY: there is an `Isa` only of sets that this CPU has; the rest is the caller's contract.
                match isa.kind() {
                    crate::isa::Kind::Avx512Bf16 => return unsafe { native($($arg),*) },
                    crate::isa::Kind::Avx512 => return unsafe { avx512($($arg),*) },
                    crate::isa::Kind::Avx2 => return unsafe { avx2($($arg),*) },
                    crate::isa::Kind::Portable => {}
                }
            }
            // Elsewhere there is one set.
            #[cfg(not(target_arch = "x86_64"))]
            let crate::isa::Kind::Portable = isa.kind();
            // SAFETY: the caller's contract.
            unsafe { $kernel::<crate::lanes::Portable $(, $($t),+)?>($($arg),*) }
        }
    };
}
pub(crate) use dispatch_pairs;
