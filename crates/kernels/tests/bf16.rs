//! Kernels of bf16 activations: against f64 loops on rounded inputs, against each other, and their error on inputs that
//! were not rounded.

mod loops;

use loops::{assert_close, engines, norm_reference, random, reference, rms, shapes};
use sogclr_kernels::{
    Conv, Engine, Gate, Isa, MaxPool, NormInput, Ranks, add_to, average_pool, average_pool_grad, bf16, conv2d,
    conv2d_input_grad, conv2d_weight_grad, max_pool, max_pool_grad, mean_pool, mean_pool_grad, norm_apply,
    norm_backward, norm_stats,
};

/// Half the distance between neighbours, relative: what rounding may take away.
const HALF_STEP: f64 = 1.0 / 256.0;

fn narrow(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|&v| bf16::from_f32(v)).collect()
}

fn wide(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|v| v.to_f32()).collect()
}

/// Values that bf16 has.
fn rounded(len: usize, seed: u64) -> Vec<f32> {
    wide(&narrow(&random(len, seed)))
}

/// As [`assert_close`], for values that were rounded once more.
fn assert_rounded(label: &str, ours: &[bf16], want: &[f64], tolerance: f64) {
    let scale = want.iter().fold(1e-3_f64, |max, v| max.max(v.abs()));
    for (index, (ours, want)) in ours.iter().zip(want).enumerate() {
        let error = (f64::from(ours.to_f32()) - want).abs();
        assert!(error <= tolerance * scale + HALF_STEP * want.abs(), "{label} [{index}]: {ours} vs {want}");
    }
}

/// y, dx and dw by the kernels. Outputs start as garbage: every element must be written.
fn ours(engine: Engine, c: Conv, x: &[bf16], w: &[f32], dy: &[bf16]) -> (Vec<bf16>, Vec<bf16>, Vec<f32>) {
    let nan = |len| vec![bf16::NAN; len];
    let (mut y, mut dx, mut dw) = (nan(c.y_len()), nan(c.x_len()), vec![f32::NAN; c.w_len()]);
    conv2d(engine, c, x, w, &mut y);
    conv2d_input_grad(engine, c, dy, w, &mut dx);
    conv2d_weight_grad(engine, c, x, dy, &mut dw);
    (y, dx, dw)
}

type Bits = (Vec<u16>, Vec<u16>, Vec<u32>);

fn bits((y, dx, dw): (Vec<bf16>, Vec<bf16>, Vec<f32>)) -> Bits {
    let halves = |values: Vec<bf16>| values.into_iter().map(bf16::to_bits).collect();
    (halves(y), halves(dx), dw.into_iter().map(f32::to_bits).collect())
}

#[test]
fn convolutions_and_their_gradients_equal_the_loop() {
    for c in shapes() {
        let (x, w, dy) = (rounded(c.x_len(), 1), rounded(c.w_len(), 2), rounded(c.y_len(), 3));
        let want = reference(c, &x, &w, &dy);
        for engine in engines() {
            let label = format!("{engine:?} {c:?}");
            let (y, dx, dw) = ours(engine, c, &narrow(&x), &w, &narrow(&dy));
            assert_rounded(&format!("{label} y"), &y, &want.y, 1e-5);
            assert_rounded(&format!("{label} dx"), &dx, &want.dx, 1e-5);
            assert_close(&format!("{label} dw"), &dw, &want.dw, 1e-5);
        }
    }
}

/// The sets add the same products in the same order.
#[test]
fn direct_sums_have_the_same_bits_under_every_instruction_set() {
    for c in shapes() {
        let (x, w, dy) = (narrow(&random(c.x_len(), 1)), random(c.w_len(), 2), narrow(&random(c.y_len(), 3)));
        let direct = |isa| bits(ours(Engine { isa, winograd: false }, c, &x, &w, &dy));
        let portable = direct(Isa::PORTABLE);
        for isa in Isa::available() {
            assert!(direct(isa) == portable, "{isa} {c:?}");
        }
    }
}

/// On inputs that are not rounded, the error of an ideal bf16 layer: inputs and weights rounded, sums exact, output rounded.
/// PyTorch's is no smaller, and ours may be half as large again.
#[test]
fn errors_stay_near_those_of_rounding_alone() {
    let shapes = [
        [2, 16, 16, 64, 64, 3, 1],
        [1, 14, 14, 208, 208, 3, 1],
        [2, 14, 14, 64, 96, 3, 2],
        [2, 14, 14, 256, 64, 1, 1],
        [1, 32, 32, 3, 64, 7, 2],
    ];
    for [n, h, w, ci, co, k, stride] in shapes {
        let c = Conv { n, h, w, ci, co, k, stride, pad: k / 2 };
        let (x, w, dy) = (random(c.x_len(), 1), random(c.w_len(), 2), random(c.y_len(), 3));
        let exact = reference(c, &x, &w, &dy);
        let round = |values: &[f32]| wide(&narrow(values));
        let ideal = reference(c, &round(&x), &round(&w), &round(&dy));
        let out = |values: &[f64]| wide(&values.iter().map(|&v| bf16::from_f64(v)).collect::<Vec<_>>());
        for engine in engines() {
            let (y, dx, dw) = ours(engine, c, &narrow(&x), &w, &narrow(&dy));
            let dw_ideal: Vec<f32> = ideal.dw.iter().map(|&v| v as f32).collect();
            for (what, ours, ideal, exact) in [
                ("y", wide(&y), out(&ideal.y), &exact.y),
                ("dx", wide(&dx), out(&ideal.dx), &exact.dx),
                ("dw", dw, dw_ideal, &exact.dw),
            ] {
                let ratio = rms(&ours, exact) / rms(&ideal, exact);
                assert!(ratio <= 1.5, "{what} {engine:?} {c:?}: {ratio:.2} times the error of rounding");
            }
        }
    }
}

#[test]
fn batch_norm_and_its_gradients_equal_the_loop() {
    for isa in Isa::available() {
        for (pixels, c) in [(5, 1), (7, 3), (130, 16), (1500, 17), (300, 48)] {
            for (relu, has_residual) in [(false, false), (true, false), (true, true)] {
                let label = format!("{isa} {pixels}×{c} relu {relu} residual {has_residual}");
                let x: Vec<f32> = wide(&narrow(&random(pixels * c, 7).iter().map(|v| v + 3.0).collect::<Vec<_>>()));
                let (res, dy) = (rounded(pixels * c, 8), rounded(pixels * c, 9));
                let (w, b) = (random(c, 10).iter().map(|v| v + 1.0).collect::<Vec<_>>(), random(c, 11));
                let mut want = norm_reference(&x, has_residual.then_some(&res), &w, &b, relu, &dy);
                let (x, res, dy) = (narrow(&x), narrow(&res), narrow(&dy));
                let stats = norm_stats(isa, &x, c, Ranks::ALONE);
                let scale: Vec<f32> = (0..c).map(|k| w[k] / (stats.var[k] + 1e-5).sqrt()).collect();
                let shift: Vec<f32> = (0..c).map(|k| b[k] - stats.mean[k] * scale[k]).collect();
                let mut y = vec![bf16::NAN; x.len()];
                norm_apply(isa, &x, has_residual.then_some(&res), &scale, &shift, relu, &mut y);
                // Where the sum cancels to the last place f32 may be on the other side of ReLU's kink: none is that near.
                assert!(want.y.iter().all(|y| *y == 0.0 || y.abs() > 1e-6), "{label}");
                assert_rounded(&format!("{label} y"), &y, &want.y, 1e-5);
                let gate = if relu { Gate::Output(y.as_slice()) } else { Gate::Open };
                let (mut dx, mut dres) = (x.clone(), dy.clone());
                let input = if has_residual { NormInput::BecomesGradient(&mut dx) } else { NormInput::Keep(&x) };
                let grad = norm_backward(isa, input, gate, &mut dres, &stats, &w, 1e-5, Ranks::ALONE);
                if !has_residual {
                    (dx, want.dres) = (dres, Vec::new());
                } else {
                    assert_rounded(&format!("{label} dresidual"), &dres, &want.dres, 1e-6);
                }
                assert_rounded(&format!("{label} dx"), &dx, &want.dx, 2e-5);
                assert_close(&format!("{label} dweight"), &grad.weight, &want.dw, 2e-5);
                assert_close(&format!("{label} dbias"), &grad.bias, &want.db, 2e-5);
            }
        }
    }
}

#[test]
fn pooling_is_that_of_f32_rounded_once() {
    for (n, h, w, c) in [(1, 1, 1, 1), (2, 5, 4, 3), (3, 8, 7, 17), (1, 9, 9, 16), (2, 6, 4, 5)] {
        let pool = MaxPool { n, h, w, c };
        // Ties: the first maximum takes the gradient.
        let x: Vec<f32> = rounded(pool.x_len(), 1).iter().map(|v| (v * 8.0).round()).collect();
        let dy = rounded(pool.y_len(), 2);
        let (mut y, mut dx) = (vec![f32::NAN; pool.y_len()], vec![f32::NAN; pool.x_len()]);
        max_pool(pool, &x, &mut y);
        max_pool_grad(pool, &x, &y, &dy, &mut dx);
        let (x16, dy16) = (narrow(&x), narrow(&dy));
        let (mut y16, mut dx16) = (vec![bf16::NAN; y.len()], vec![bf16::NAN; x.len()]);
        max_pool(pool, &x16, &mut y16);
        max_pool_grad(pool, &x16, &y16, &dy16, &mut dx16);
        assert_eq!((y16, dx16), (narrow(&y), narrow(&dx)), "{pool:?}");

        if h % 2 + w % 2 == 0 {
            let at = |n, r, q, k| ((n * h + r) * w + q) * c + k;
            let square = |n, r, q, k| [at(n, r, q, k), at(n, r, q + 1, k), at(n, r + 1, q, k), at(n, r + 1, q + 1, k)];
            let quarter = x.len() / 4;
            let (mut means, mut means16) = (vec![f32::NAN; quarter], vec![bf16::NAN; quarter]);
            average_pool([h, w, c], &x, &mut means);
            average_pool([h, w, c], &x16, &mut means16);
            let (mut spread, mut spread16) = (vec![f32::NAN; x.len()], vec![bf16::NAN; x.len()]);
            average_pool_grad([h, w, c], &means, &mut spread);
            average_pool_grad([h, w, c], &means16, &mut spread16);
            for (index, &mean) in means.iter().enumerate() {
                let (k, q, r, n) =
                    (index % c, index / c % (w / 2), index / (c * w / 2) % (h / 2), index / (c * w * h / 4));
                let pixels = square(n, 2 * r, 2 * q, k);
                assert_eq!(mean, pixels.iter().map(|&at| x[at]).sum::<f32>() / 4.0, "sums of eighths are exact");
                assert!(pixels.iter().all(|&at| spread[at] == mean / 4.0), "{pool:?}");
            }
            assert_eq!((means16, spread16), (narrow(&means), narrow(&spread)), "{pool:?}");
        }

        let (mut mean, mut mean16) = (vec![f32::NAN; n * c], vec![f32::NAN; n * c]);
        mean_pool(c, &x, &mut mean);
        mean_pool(c, &x16, &mut mean16);
        assert_eq!(mean16, mean, "means are f32");
        let (mut spread, mut spread16) = (vec![f32::NAN; x.len()], vec![bf16::NAN; x.len()]);
        mean_pool_grad(c, &mean, &mut spread);
        mean_pool_grad(c, &mean, &mut spread16);
        assert_eq!(spread16, narrow(&spread), "{pool:?}");
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_byte() {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let all = shapes().map(|c| {
                let (x, w, dy) = (narrow(&random(c.x_len(), 1)), random(c.w_len(), 2), narrow(&random(c.y_len(), 3)));
                let (y, dx, dw) = ours(Engine::default(), c, &x, &w, &dy);
                let stats = norm_stats(Isa::best(), &y, c.co, Ranks::ALONE);
                let mut dn = dy.clone();
                let weight = random(c.co, 4);
                let input = NormInput::Keep(&y);
                let grad = norm_backward(Isa::best(), input, Gate::Open, &mut dn, &stats, &weight, 1e-5, Ranks::ALONE);
                (bits((y, dx, dw)), stats, narrow(&wide(&dn)), grad)
            });
            all.collect::<Vec<_>>()
        })
    };
    let one = run(1);
    for threads in [2, 3, 5] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn unaligned_slices_give_the_same_values() {
    for c in shapes() {
        let (x, w, dy) = (narrow(&random(c.x_len() + 1, 5)), random(c.w_len(), 6), narrow(&random(c.y_len() + 1, 7)));
        let moved = [&x, &dy].map(|values| values[1..].to_vec());
        let plain = bits(ours(Engine::default(), c, &moved[0], &w, &moved[1]));
        assert!(bits(ours(Engine::default(), c, &x[1..], &w, &dy[1..])) == plain, "{c:?}");
    }
}

#[test]
fn a_sum_in_place_is_rounded_once() {
    for (isa, len) in Isa::available().into_iter().flat_map(|isa| [1, 16, 33, 70_001].map(|len| (isa, len))) {
        let (a, b) = (rounded(len, 1), rounded(len, 2));
        let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let (mut wide, mut half) = (a.clone(), narrow(&a));
        add_to(isa, &mut wide, &b);
        add_to(isa, &mut half, &narrow(&b));
        assert!(wide == want && half == narrow(&want), "{isa} {len}");
    }
}
