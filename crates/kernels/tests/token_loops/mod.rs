//! Loops in f64 of what transformers are made of, and the shapes that kernels are compared on.

use sogclr_kernels::{Activation, Attention, Linear};

pub fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
    };
    (0..len).map(|_| next()).collect()
}

/// As [`random`], but up to ±`size`.
pub fn larger(len: usize, seed: u64, size: f32) -> Vec<f32> {
    random(len, seed).iter().map(|v| 2.0 * size * v).collect()
}

pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

pub fn assert_close(label: &str, ours: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), want.len(), "{label}");
    let scale = want.iter().fold(1e-3_f64, |max, v| max.max(v.abs()));
    for (index, (ours, want)) in ours.iter().zip(want).enumerate() {
        let error = (f64::from(*ours) - want).abs();
        assert!(error <= tolerance * scale, "{label} [{index}]: {ours} vs {want}, of {scale}");
    }
}

/// Every `step`-th of `ours` against the central difference of `f` there; `f` is smooth and of size 1.
pub fn assert_slopes(label: &str, ours: &[f32], x: &[f32], step: usize, f: impl Fn(&[f64]) -> f64) {
    assert_slopes_within(label, ours, x, step, 1e-5, f);
}

/// The same with another tolerance.
pub fn assert_slopes_within(
    label: &str,
    ours: &[f32],
    x: &[f32],
    step: usize,
    tolerance: f64,
    f: impl Fn(&[f64]) -> f64,
) {
    const H: f64 = 1e-4;
    let mut x = wide(x);
    let mut slope = |index: usize| {
        let old = x[index];
        x[index] = old + H;
        let above = f(&x);
        x[index] = old - H;
        let below = f(&x);
        x[index] = old;
        (above - below) / (2.0 * H)
    };
    let (some, want): (Vec<f32>, Vec<f64>) = (0..ours.len()).step_by(step).map(|k| (ours[k], slope(k))).unzip();
    assert_close(label, &some, &want, tolerance);
}

pub fn weighted(y: &[f64], by: &[f32]) -> f64 {
    y.iter().zip(by).map(|(y, by)| y * f64::from(*by)).sum()
}

/// One row, one value, fewer and more than sixteen of each, several panels, groups and tasks.
pub const LINEAR: &[[usize; 3]] = &[
    // rows, input, output
    [1, 1, 1],
    [3, 5, 7],
    [13, 16, 16],
    [50, 33, 70],
    [257, 130, 48],
    [131, 300, 20],
    [129, 20, 300],
    [700, 64, 65],
];

pub fn linear_in_f64(shape: Linear, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f64> {
    let row = |r: usize, o: usize| {
        let products =
            (0..shape.input).map(|i| f64::from(x[r * shape.input + i]) * f64::from(weight[o * shape.input + i]));
        products.sum::<f64>() + f64::from(bias[o])
    };
    (0..shape.rows).flat_map(|r| (0..shape.output).map(move |o| row(r, o))).collect()
}

/// (1 + erf(x/√2))/2 by erf(z) = 2/√π·e^{−z²}·Σ 2ⁿz^{2n+1}/(2n+1)!!, whose terms are positive.
pub fn normal(x: f64) -> f64 {
    let z = x / 2_f64.sqrt();
    let (mut term, mut sum) = (z, z);
    for n in 1..400 {
        term *= 2.0 * z * z / f64::from(2 * n + 1);
        sum += term;
    }
    0.5 + sum * (-z * z).exp() / std::f64::consts::PI.sqrt()
}

pub fn activation_in_f64(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Gelu => x * normal(x),
        Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
    }
}

pub fn norm_in_f64(x: &[f64], weight: &[f64], bias: &[f64], epsilon: f64) -> Vec<f64> {
    let width = weight.len();
    let row = |x: &[f64]| -> Vec<f64> {
        let mean = x.iter().sum::<f64>() / width as f64;
        let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        (0..width).map(|k| (x[k] - mean) / (var + epsilon).sqrt() * weight[k] + bias[k]).collect()
    };
    x.chunks_exact(width).flat_map(row).collect()
}

/// One token, one head of one value, heads wider than sixteen lanes, more tokens than go at once.
pub fn attentions() -> impl Iterator<Item = Attention> {
    let shapes = [[1, 1, 1, 1], [2, 5, 3, 4], [1, 17, 2, 16], [3, 48, 1, 8], [2, 49, 2, 20], [1, 130, 1, 64]];
    let both =
        |[n, length, heads, size]: [usize; 4]| [false, true].map(|causal| Attention { n, length, heads, size, causal });
    shapes.into_iter().flat_map(both)
}

pub fn attention_in_f64(shape: Attention, all: &[f64]) -> Vec<f64> {
    let Attention { n, length, heads, size, causal } = shape;
    let width = heads * size;
    let mut out = vec![0.0; n * length * width];
    let value = |i: usize, token: usize, part: usize, head: usize, k: usize| {
        all[((i * length + token) * 3 + part) * width + head * size + k]
    };
    for (i, head, query) in
        (0..n).flat_map(|i| (0..heads).flat_map(move |h| (0..length).map(move |query| (i, h, query))))
    {
        let seen = if causal { query + 1 } else { length };
        let logit = |key: usize| {
            (0..size).map(|k| value(i, query, 0, head, k) * value(i, key, 1, head, k)).sum::<f64>()
                / (size as f64).sqrt()
        };
        let weights: Vec<f64> = (0..seen).map(|key| logit(key).exp()).collect();
        let sum = weights.iter().sum::<f64>();
        for k in 0..size {
            let mixed = (0..seen).map(|key| weights[key] * value(i, key, 2, head, k)).sum::<f64>();
            out[(i * length + query) * width + head * size + k] = mixed / sum;
        }
    }
    out
}

pub fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}
