//! Every kernel against an f64 loop over odd shapes, under each instruction set of this CPU, and across threads.

use sogclr_kernels::isa::{Isa, best, force};
use sogclr_kernels::{
    Conv, NormInput, NormStats, conv2d, conv2d_input_grad, conv2d_weight_grad, norm_apply, norm_backward, norm_stats,
};
use std::sync::Mutex;

/// The instruction set is one for the whole process: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn with_each_isa(test: impl Fn(Isa)) {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(|&isa| isa <= best()) {
        force(isa);
        test(isa);
    }
    force(best());
}

fn random(len: usize, seed: u64) -> Vec<f32> {
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
];

fn shapes() -> impl Iterator<Item = Conv> {
    SHAPES.iter().map(|&[n, h, w, ci, co, k, stride, pad]| Conv { n, h, w, ci, co, k, stride, pad })
}

struct Reference {
    y: Vec<f64>,
    dx: Vec<f64>,
    dw: Vec<f64>,
}

fn reference(c: Conv, x: &[f32], w: &[f32], dy: &[f32]) -> Reference {
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

fn assert_close(label: &str, ours: &[f32], want: &[f64], tolerance: f64) {
    let scale = want.iter().fold(1e-3_f64, |max, v| max.max(v.abs()));
    for (index, (ours, want)) in ours.iter().zip(want).enumerate() {
        let error = (f64::from(*ours) - want).abs();
        assert!(error <= tolerance * scale, "{label} [{index}]: {ours} vs {want}");
    }
}

#[test]
fn convolutions_and_their_gradients_equal_the_loop() {
    with_each_isa(|isa| {
        for c in shapes() {
            let (x, w, dy) = (random(c.x_len(), 1), random(c.w_len(), 2), random(c.y_len(), 3));
            let want = reference(c, &x, &w, &dy);
            // Outputs start as garbage: every element must be written.
            let (mut y, mut dx, mut dw) = (vec![9.0; c.y_len()], vec![9.0; c.x_len()], vec![9.0; c.w_len()]);
            conv2d(c, &x, &w, &mut y);
            conv2d_input_grad(c, &dy, &w, &mut dx);
            conv2d_weight_grad(c, &x, &dy, &mut dw);
            assert_close(&format!("{isa:?} {c:?} y"), &y, &want.y, 1e-5);
            assert_close(&format!("{isa:?} {c:?} dx"), &dx, &want.dx, 1e-5);
            assert_close(&format!("{isa:?} {c:?} dw"), &dw, &want.dw, 1e-5);
        }
    });
}

#[test]
fn unaligned_slices_give_the_same_values() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let c = Conv { n: 2, h: 6, w: 6, ci: 16, co: 32, k: 3, stride: 1, pad: 1 };
    let (x, w) = (random(c.x_len() + 1, 5), random(c.w_len() + 1, 6));
    let mut shifted = vec![0.0; c.y_len() + 1];
    conv2d(c, &x[1..], &w[1..], &mut shifted[1..]);
    let mut plain = vec![0.0; c.y_len()];
    let (x, w) = (x[1..].to_vec(), w[1..].to_vec());
    conv2d(c, &x, &w, &mut plain);
    assert_eq!(shifted[1..], plain);
}

#[test]
fn the_number_of_threads_does_not_change_a_byte() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let c = Conv { n: 13, h: 12, w: 12, ci: 32, co: 48, k: 3, stride: 1, pad: 1 };
            let (x, w, dy) = (random(c.x_len(), 1), random(c.w_len(), 2), random(c.y_len(), 3));
            let (mut y, mut dx, mut dw) = (vec![0.0; c.y_len()], vec![0.0; c.x_len()], vec![0.0; c.w_len()]);
            conv2d(c, &x, &w, &mut y);
            conv2d_input_grad(c, &dy, &w, &mut dx);
            conv2d_weight_grad(c, &x, &dy, &mut dw);
            let stats = norm_stats(&y, 48);
            let mut dn = dy.clone();
            let grad = norm_backward(NormInput::Keep(&y), None, &mut dn, &stats, &w[..48], 1e-5);
            (y, dx, dw, stats, dn, grad)
        })
    };
    let one = run(1);
    for threads in [2, 3, 5] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
#[should_panic(expected = "at least one image")]
fn an_empty_batch_is_refused() {
    let c = Conv { n: 0, h: 4, w: 4, ci: 16, co: 16, k: 3, stride: 1, pad: 1 };
    conv2d(c, &[], &vec![0.0; c.w_len()], &mut []);
}

/// Batch norm, residual and ReLU in f64: output, dx, dresidual, dweight, dbias for the upstream gradient dy.
struct NormReference {
    y: Vec<f64>,
    dx: Vec<f64>,
    dres: Vec<f64>,
    dw: Vec<f64>,
    db: Vec<f64>,
}

fn norm_reference(x: &[f32], res: Option<&[f32]>, w: &[f32], b: &[f32], relu: bool, dy: &[f32]) -> NormReference {
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

#[test]
fn batch_norm_and_its_gradients_equal_the_loop() {
    with_each_isa(|isa| {
        for (pixels, c) in [(5, 1), (7, 3), (130, 16), (1500, 17), (300, 48)] {
            for (relu, has_residual) in [(false, false), (true, false), (true, true)] {
                let label = format!("{isa:?} {pixels}×{c} relu {relu} residual {has_residual}");
                let x: Vec<f32> = random(pixels * c, 7).iter().map(|v| v + 3.0).collect();
                let (res, dy) = (random(pixels * c, 8), random(pixels * c, 9));
                let (w, b) = (random(c, 10).iter().map(|v| v + 1.0).collect::<Vec<_>>(), random(c, 11));
                let res = has_residual.then_some(res.as_slice());
                let want = norm_reference(&x, res, &w, &b, relu, &dy);
                let stats: NormStats = norm_stats(&x, c);
                let scale: Vec<f32> = (0..c).map(|k| w[k] / (stats.var[k] + 1e-5).sqrt()).collect();
                let shift: Vec<f32> = (0..c).map(|k| b[k] - stats.mean[k] * scale[k]).collect();
                let mut y = vec![9.0; x.len()];
                norm_apply(&x, res, &scale, &shift, relu, &mut y);
                assert_close(&format!("{label} y"), &y, &want.y, 1e-5);
                let gate = relu.then_some(y.as_slice());
                let (mut dx, mut dres) = (x.clone(), dy.clone());
                let grad = if has_residual {
                    norm_backward(NormInput::BecomesGradient(&mut dx), gate, &mut dres, &stats, &w, 1e-5)
                } else {
                    dx = dy.clone();
                    norm_backward(NormInput::Keep(&x), gate, &mut dx, &stats, &w, 1e-5)
                };
                assert_close(&format!("{label} dx"), &dx, &want.dx, 2e-5);
                assert_close(&format!("{label} dweight"), &grad.weight, &want.dw, 2e-5);
                assert_close(&format!("{label} dbias"), &grad.bias, &want.db, 2e-5);
                if has_residual {
                    assert_close(&format!("{label} dresidual"), &dres, &want.dres, 1e-6);
                }
            }
        }
    });
}
