//! Loops in f64 that the kernels are compared with, and the shapes.

use sogclr_kernels::{Conv, Engine, Isa};

/// Every engine of this CPU.
pub fn engines() -> Vec<Engine> {
    let both = |isa| [true, false].map(|winograd| Engine { isa, winograd });
    Isa::available().into_iter().flat_map(both).collect()
}

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

/// One pixel, one channel, 17 channels, batch 1, non-square, stride 2 on odd sizes, the stems, bottleneck shapes.
const SHAPES: &[[usize; 8]] = &[
    // n, h, w, ci, co, k, stride, pad
    [1, 1, 1, 1, 1, 3, 1, 1],
    [1, 1, 1, 1, 1, 1, 1, 0],
    [2, 5, 7, 3, 17, 3, 1, 1],
    [3, 9, 9, 17, 5, 3, 2, 1],
    [2, 8, 8, 16, 32, 3, 1, 1],
    [9, 4, 4, 32, 16, 3, 1, 1],
    [2, 7, 7, 16, 16, 1, 2, 0],
    [2, 8, 6, 32, 48, 1, 1, 0],
    [1, 15, 15, 3, 16, 7, 2, 3],
    [2, 9, 5, 32, 33, 3, 2, 1],
    [1, 6, 6, 16, 16, 5, 1, 0],
    [2, 3, 3, 96, 200, 3, 1, 1],
    [5, 2, 2, 256, 128, 3, 2, 1],
    [3, 9, 6, 48, 80, 1, 2, 0],
    [70, 2, 1, 600, 20, 1, 1, 0],
    // Winograd: whole and cut tiles, one and many channels, more tiles than one chunk
    [2, 4, 4, 16, 16, 3, 1, 1],
    [1, 13, 9, 48, 16, 3, 1, 1],
    [3, 7, 7, 32, 112, 3, 1, 1],
    [2, 32, 20, 16, 16, 3, 1, 1],
    [1, 5, 8, 256, 208, 3, 1, 1],
    [400, 3, 2, 208, 208, 3, 1, 1],
];

pub fn shapes() -> impl Iterator<Item = Conv> {
    SHAPES.iter().map(|&[n, h, w, ci, co, k, stride, pad]| Conv { n, h, w, ci, co, k, stride, pad })
}

pub struct Reference {
    pub y: Vec<f64>,
    pub dx: Vec<f64>,
    pub dw: Vec<f64>,
}

pub fn reference(c: Conv, x: &[f32], w: &[f32], dy: &[f32]) -> Reference {
    let (ho, wo) = c.out();
    let mut out = Reference { y: vec![0.0; c.y_len()], dx: vec![0.0; c.x_len()], dw: vec![0.0; c.w_len()] };
    for (n, r, q, o) in (0..c.n)
        .flat_map(|n| (0..ho).flat_map(move |r| (0..wo).flat_map(move |q| (0..c.co).map(move |o| (n, r, q, o)))))
    {
        let y = ((n * ho + r) * wo + q) * c.co + o;
        for (a, b) in (0..c.k).flat_map(|a| (0..c.k).map(move |b| (a, b))) {
            let (Some(u), Some(v)) = ((r * c.stride + a).checked_sub(c.pad), (q * c.stride + b).checked_sub(c.pad))
            else {
                continue;
            };
            if u >= c.h || v >= c.w {
                continue;
            }
            for i in 0..c.ci {
                let (xi, wi) = (((n * c.h + u) * c.w + v) * c.ci + i, ((o * c.ci + i) * c.k + a) * c.k + b);
                out.y[y] += f64::from(x[xi]) * f64::from(w[wi]);
                out.dx[xi] += f64::from(dy[y]) * f64::from(w[wi]);
                out.dw[wi] += f64::from(dy[y]) * f64::from(x[xi]);
            }
        }
    }
    out
}

pub fn assert_close(label: &str, ours: &[f32], want: &[f64], tolerance: f64) {
    let scale = want.iter().fold(1e-3_f64, |max, v| max.max(v.abs()));
    for (index, (ours, want)) in ours.iter().zip(want).enumerate() {
        let error = (f64::from(*ours) - want).abs();
        assert!(error <= tolerance * scale, "{label} [{index}]: {ours} vs {want}");
    }
}

/// Root mean square of the error.
pub fn rms(ours: &[f32], want: &[f64]) -> f64 {
    let sum: f64 = ours.iter().zip(want).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
    (sum / ours.len() as f64).sqrt()
}

/// Batch norm, residual and ReLU in f64: output, dx, dresidual, dweight, dbias for the upstream gradient dy.
pub struct NormReference {
    pub y: Vec<f64>,
    pub dx: Vec<f64>,
    pub dres: Vec<f64>,
    pub dw: Vec<f64>,
    pub db: Vec<f64>,
}

pub fn norm_reference(x: &[f32], res: Option<&[f32]>, w: &[f32], b: &[f32], relu: bool, dy: &[f32]) -> NormReference {
    let c = w.len();
    let m = (x.len() / c) as f64;
    let zeros = || vec![0.0; x.len()];
    let mut out = NormReference { y: zeros(), dx: zeros(), dres: zeros(), dw: vec![0.0; c], db: vec![0.0; c] };
    for k in 0..c {
        let places: Vec<usize> = (k..x.len()).step_by(c).collect();
        let mean = places.iter().map(|&p| f64::from(x[p])).sum::<f64>() / m;
        let var = places.iter().map(|&p| (f64::from(x[p]) - mean).powi(2)).sum::<f64>() / m;
        let inverse = 1.0 / (var + 1e-5).sqrt();
        let (weight, bias) = (f64::from(w[k]), f64::from(b[k]));
        for &p in &places {
            let hat = (f64::from(x[p]) - mean) * inverse;
            out.y[p] = hat * weight + bias + res.map_or(0.0, |r| f64::from(r[p]));
            out.dres[p] = if relu && out.y[p] <= 0.0 { 0.0 } else { f64::from(dy[p]) };
            out.y[p] = if relu { out.y[p].max(0.0) } else { out.y[p] };
            out.db[k] += out.dres[p];
            out.dw[k] += out.dres[p] * hat;
        }
        for &p in &places {
            let hat = (f64::from(x[p]) - mean) * inverse;
            out.dx[p] = weight * inverse * (out.dres[p] - out.db[k] / m - hat * out.dw[k] / m);
        }
    }
    out
}
