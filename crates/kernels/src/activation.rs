//! GELU and QuickGELU with their slopes, sixteen values at a time.

use crate::lanes::Lanes;
use crate::softmax::exp;

/// What stands between the two linear layers of a transformer's MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x·Φ(x) with the normal distribution Φ.
    Gelu,
    /// x·σ(1.702x), CLIP's.
    QuickGelu,
}

/// e^{z²}·erfc(z) = t·Σ c_k t^k with t = 1/(1 + 0.3z): within 2·10⁻⁸ of it for z ≥ 0 (fitted by Lawson's iteration).
const TAIL: [f32; 9] = [
    0.169_190_12,
    0.170_684_65,
    0.148_527_17,
    0.214_283_54,
    -0.093_313_78,
    0.545_982_9,
    -0.510_899_6,
    0.484_951_5,
    -0.129_406_51,
];
const SLOPE: f32 = 0.3;
/// The density of the normal distribution at 0: 1/√(2π)
const DENSITY: f32 = 0.398_942_3;
const QUICK: f32 = 1.702;

/// f(x) and f′(x)
///
/// # Safety
/// Runs on a CPU that has the lanes' instructions.
#[inline(always)]
pub(crate) unsafe fn activate<V: Lanes>(activation: Activation, x: V) -> (V, V) {
    // SAFETY: the caller's contract.
    unsafe {
        match activation {
            Activation::Gelu => gelu(x),
            Activation::QuickGelu => quick_gelu(x),
        }
    }
}

#[inline(always)]
unsafe fn gelu<V: Lanes>(x: V) -> (V, V) {
    // SAFETY: the caller's contract.
    unsafe {
        let one = V::splat(1.0);
        let size = x.max(V::zero().sub(x));
        let gauss = exp(x.mul(x).mul(V::splat(-0.5)));
        let t = one.div(size.fma(V::splat(SLOPE * std::f32::consts::FRAC_1_SQRT_2), one));
        let mut sum = V::splat(TAIL[8]);
        for k in (0..8).rev() {
            sum = sum.fma(t, V::splat(TAIL[k]));
        }
        // Φ(−|x|) = ½ erfc(|x|/√2), and Φ(x) = 1 − Φ(−x)
        let tail = sum.mul(t).mul(gauss).mul(V::splat(0.5));
        let phi = tail.add(one.sub(tail.add(tail)).where_positive(x));
        (x.mul(phi), x.mul(gauss).fma(V::splat(DENSITY), phi))
    }
}

#[inline(always)]
unsafe fn quick_gelu<V: Lanes>(x: V) -> (V, V) {
    // SAFETY: the caller's contract.
    unsafe {
        let one = V::splat(1.0);
        let e = exp(x.mul(V::splat(-QUICK)));
        let sigmoid = one.div(e.add(one));
        // (x·σ)′ = σ + 1.702·x·σ·(1 − σ), and 1 − σ = e·σ
        let value = x.mul(sigmoid);
        (value, value.mul(e.mul(sigmoid)).fma(V::splat(QUICK), sigmoid))
    }
}
