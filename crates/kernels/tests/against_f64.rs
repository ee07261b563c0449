//! Every kernel against an f64 loop over odd shapes, under each instruction set of this CPU, and across threads.

mod loops;

use loops::{assert_close, norm_reference, random, reference, rms, shapes};
use sogclr_kernels::{
    Conv, Engine, Gate, Isa, MaxPool, NormGrad, NormInput, NormStats, Ranks, conv2d, conv2d_input_grad,
    conv2d_weight_grad, max_pool, max_pool_grad, mean_pool, mean_pool_grad, norm_apply, norm_backward, norm_stats,
    softmax_pair, softmax_sum,
};
use std::sync::Barrier;

/// Every engine of this CPU; products of bf16 are no matter here.
fn engines() -> Vec<Engine> {
    loops::engines().into_iter().filter(|engine| engine.isa.for_f32() == engine.isa).collect()
}

/// y, dx and dw by the kernels. Outputs start as garbage: every element must be written.
fn ours(engine: Engine, c: Conv, x: &[f32], w: &[f32], dy: &[f32]) -> [Vec<f32>; 3] {
    let (mut y, mut dx, mut dw) = (vec![9.0; c.y_len()], vec![9.0; c.x_len()], vec![9.0; c.w_len()]);
    conv2d(engine, c, x, w, &mut y);
    conv2d_input_grad(engine, c, dy, w, &mut dx);
    conv2d_weight_grad(engine, c, x, dy, &mut dw);
    [y, dx, dw]
}

#[test]
fn convolutions_and_their_gradients_equal_the_loop() {
    for c in shapes() {
        let (x, w, dy) = (random(c.x_len(), 1), random(c.w_len(), 2), random(c.y_len(), 3));
        let want = reference(c, &x, &w, &dy);
        for engine in engines() {
            let label = format!("{engine:?} {c:?}");
            let [y, dx, dw] = ours(engine, c, &x, &w, &dy);
            assert_close(&format!("{label} y"), &y, &want.y, 1e-5);
            assert_close(&format!("{label} dx"), &dx, &want.dx, 1e-5);
            assert_close(&format!("{label} dw"), &dw, &want.dw, 1e-5);
        }
    }
}

#[test]
fn winograd_rounds_at_most_four_times_as_much_as_direct_sums() {
    for (n, side, channels) in [(2, 32, 16), (2, 16, 64), (1, 14, 128), (1, 8, 208), (2, 7, 208)] {
        let c = Conv { n, h: side, w: side, ci: channels, co: channels, k: 3, stride: 1, pad: 1 };
        let (x, w, dy) = (random(c.x_len(), 1), random(c.w_len(), 2), random(c.y_len(), 3));
        let want = reference(c, &x, &w, &dy);
        let isa = Isa::best();
        let [winograd, direct] = [true, false].map(|winograd| ours(Engine { isa, winograd }, c, &x, &w, &dy));
        for (what, (winograd, direct), want) in [
            ("y", (&winograd[0], &direct[0]), &want.y),
            ("dx", (&winograd[1], &direct[1]), &want.dx),
            ("dw", (&winograd[2], &direct[2]), &want.dw),
        ] {
            assert_ne!(winograd, direct, "{what} of {c:?} must take two ways");
            let ratio = rms(winograd, want) / rms(direct, want);
            assert!(ratio <= 4.0, "{what} of {c:?}: {ratio:.2} times the error of direct sums");
        }
    }
}

/// Σ values·probe in f64
fn dot(values: &[f32], probe: &[f32]) -> f64 {
    values.iter().zip(probe).map(|(&v, &p)| f64::from(v) * f64::from(p)).sum()
}

fn shifted(values: &[f32], direction: &[f32], by: f32) -> Vec<f32> {
    values.iter().zip(direction).map(|(v, d)| v + by * d).collect()
}

/// The difference quotient of `f` along `direction`.
fn slope(f: impl Fn(&[f32]) -> f64, at: &[f32], direction: &[f32], step: f32) -> f64 {
    (f(&shifted(at, direction, step)) - f(&shifted(at, direction, -step))) / (2.0 * f64::from(step))
}

#[test]
fn gradients_are_finite_differences_of_the_forward_kernels() {
    let engine = Engine::default();
    for c in shapes() {
        let (x, w, probe) = (random(c.x_len(), 1), random(c.w_len(), 2), random(c.y_len(), 3));
        let loss = |x: &[f32], w: &[f32]| {
            let mut y = vec![0.0; c.y_len()];
            conv2d(engine, c, x, w, &mut y);
            dot(&y, &probe)
        };
        let [_, dx, dw] = ours(engine, c, &x, &w, &probe);
        let (along_x, along_w) = (random(x.len(), 4), random(w.len(), 5));
        let size = (dot(&dx, &dx) * dot(&along_x, &along_x)).sqrt().max(1e-3);
        let quotient = slope(|x| loss(x, &w), &x, &along_x, 0.5);
        assert!((dot(&dx, &along_x) - quotient).abs() < 1e-4 * size, "dx of {c:?}");
        let size = (dot(&dw, &dw) * dot(&along_w, &along_w)).sqrt().max(1e-3);
        let quotient = slope(|w| loss(&x, w), &w, &along_w, 0.5);
        assert!((dot(&dw, &along_w) - quotient).abs() < 1e-4 * size, "dw of {c:?}");
    }
}

#[test]
fn batch_norm_gradients_are_finite_differences() {
    let (isa, pixels, c) = (Isa::best(), 200, 17);
    let (x, residual, probe) = (random(pixels * c, 1), random(pixels * c, 2), random(pixels * c, 3));
    let (weight, bias) = (random(c, 4).iter().map(|v| v + 1.0).collect::<Vec<_>>(), random(c, 5));
    let forward = |x: &[f32], weight: &[f32], bias: &[f32]| {
        let stats = norm_stats(isa, x, c, Ranks::ALONE);
        let scale: Vec<f32> = (0..c).map(|k| weight[k] / (stats.var[k] + 1e-5).sqrt()).collect();
        let shift: Vec<f32> = (0..c).map(|k| bias[k] - stats.mean[k] * scale[k]).collect();
        let mut y = vec![0.0; x.len()];
        // No ReLU: its kink has no difference quotient.
        norm_apply(isa, x, Some(&residual), &scale, &shift, false, &mut y);
        (dot(&y, &probe), stats)
    };
    let (_, stats) = forward(&x, &weight, &bias);
    let mut dx = probe.clone();
    let grad = norm_backward(isa, NormInput::Keep(&x), Gate::Open, &mut dx, &stats, &weight, 1e-5, Ranks::ALONE);
    let near = |label: &str, ours: f64, quotient: f64| {
        assert!((ours - quotient).abs() < 2e-3 * quotient.abs().max(1.0), "{label}: {ours} vs {quotient}");
    };
    let along = random(x.len(), 6);
    near("x", dot(&dx, &along), slope(|x| forward(x, &weight, &bias).0, &x, &along, 1e-2));
    let along = random(c, 7);
    near("weight", dot(&grad.weight, &along), slope(|w| forward(&x, w, &bias).0, &weight, &along, 0.1));
    near("bias", dot(&grad.bias, &along), slope(|b| forward(&x, &weight, b).0, &bias, &along, 0.1));
}

#[test]
fn pooling_and_its_gradients_equal_the_loop() {
    for (n, h, w, c) in [(1, 1, 1, 1), (2, 5, 4, 3), (3, 8, 7, 17), (1, 9, 9, 16)] {
        let pool = MaxPool { n, h, w, c };
        let (ho, wo) = pool.out();
        let (mut x, dy) = (random(pool.x_len(), 1), random(pool.y_len(), 2));
        // Ties: the first maximum takes the gradient.
        x.iter_mut().for_each(|v| *v = (*v * 8.0).round());
        let (mut want, mut want_dx) = (vec![0.0; pool.y_len()], vec![0.0_f64; pool.x_len()]);
        for index in 0..pool.y_len() {
            let (channel, q, r, image) = (index % c, index / c % wo, index / (c * wo) % ho, index / (c * wo * ho));
            let mut first: Option<usize> = None;
            for (a, b) in (0..3).flat_map(|a| (0..3).map(move |b| (a, b))) {
                let (Some(u), Some(v)) = ((2 * r + a).checked_sub(1), (2 * q + b).checked_sub(1)) else { continue };
                if u < h && v < w {
                    let at = ((image * h + u) * w + v) * c + channel;
                    first = Some(first.filter(|&best| x[best] >= x[at]).unwrap_or(at));
                }
            }
            let best = first.expect("a window holds a pixel");
            want[index] = x[best];
            want_dx[best] += f64::from(dy[index]);
        }
        let (mut y, mut dx) = (vec![9.0; pool.y_len()], vec![9.0; pool.x_len()]);
        max_pool(pool, &x, &mut y);
        max_pool_grad(pool, &x, &y, &dy, &mut dx);
        assert_eq!(y, want, "{pool:?}");
        assert_close(&format!("{pool:?} dx"), &dx, &want_dx, 1e-6);

        let (mut mean, mut spread) = (vec![9.0; n * c], vec![9.0; x.len()]);
        mean_pool(c, &x, &mut mean);
        mean_pool_grad(c, &dy[..n * c], &mut spread);
        for (image, channel) in (0..n).flat_map(|i| (0..c).map(move |k| (i, k))) {
            let places = (0..h * w).map(|pixel| (image * h * w + pixel) * c + channel);
            let sum: f64 = places.clone().map(|at| f64::from(x[at])).sum();
            assert!((f64::from(mean[image * c + channel]) - sum / (h * w) as f64).abs() < 1e-5);
            assert!(places.into_iter().all(|at| spread[at] == dy[image * c + channel] / (h * w) as f32));
        }
    }
}

#[test]
fn a_nan_survives_the_maximum() {
    let pool = MaxPool { n: 1, h: 3, w: 3, c: 1 };
    let mut y = vec![0.0; pool.y_len()];
    max_pool(pool, &[1.0, 2.0, 3.0, 4.0, f32::NAN, 6.0, 7.0, 8.0, 9.0], &mut y);
    assert!(y.iter().all(|v| v.is_nan()), "{y:?}");
}

#[test]
fn a_nan_survives_the_rectifier() {
    for (isa, channels) in Isa::available().into_iter().flat_map(|isa| [1, 16, 19].map(|channels| (isa, channels))) {
        let mut x = vec![-1.0; 2 * channels];
        x[channels - 1] = f32::NAN;
        let mut y = vec![0.0; x.len()];
        norm_apply(isa, &x, None, &vec![1.0; channels], &vec![0.0; channels], true, &mut y);
        let expected = |at: usize| if at == channels - 1 { y[at].is_nan() } else { y[at] == 0.0 };
        assert!((0..y.len()).all(expected), "{isa} {channels} channels: {y:?}");
    }
}

#[test]
fn unaligned_slices_give_the_same_values() {
    let engine = Engine::default();
    for c in shapes() {
        let (x, w, dy) = (random(c.x_len() + 1, 5), random(c.w_len() + 1, 6), random(c.y_len() + 1, 7));
        let moved = [&x, &w, &dy].map(|values| values[1..].to_vec());
        let plain = ours(engine, c, &moved[0], &moved[1], &moved[2]);
        let [mut y, mut dx, mut dw] = [c.y_len(), c.x_len(), c.w_len()].map(|len| vec![9.0; len + 1]);
        conv2d(engine, c, &x[1..], &w[1..], &mut y[1..]);
        conv2d_input_grad(engine, c, &dy[1..], &w[1..], &mut dx[1..]);
        conv2d_weight_grad(engine, c, &x[1..], &dy[1..], &mut dw[1..]);
        assert_eq!([&y[1..], &dx[1..], &dw[1..]], [&plain[0][..], &plain[1], &plain[2]], "{c:?}");
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_byte() {
    let engine = Engine::default();
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut all = Vec::new();
            for c in shapes() {
                let (x, w, dy) = (random(c.x_len(), 1), random(c.w_len(), 2), random(c.y_len(), 3));
                let [y, dx, dw] = ours(engine, c, &x, &w, &dy);
                let stats = norm_stats(engine.isa, &y, c.co, Ranks::ALONE);
                let weight = random(c.co, 4);
                let (mut dn, mut spread) = (dy.clone(), vec![0.0; dx.len()]);
                let grad = norm_backward(
                    engine.isa,
                    NormInput::Keep(&y),
                    Gate::Open,
                    &mut dn,
                    &stats,
                    &weight,
                    1e-5,
                    Ranks::ALONE,
                );
                let pool = MaxPool { n: c.n, h: c.h, w: c.w, c: c.ci };
                let mut largest = vec![0.0; pool.y_len()];
                max_pool(pool, &x, &mut largest);
                max_pool_grad(pool, &x, &largest, &largest, &mut spread);
                all.push((y, dx, dw, stats, dn, grad, largest, spread));
            }
            all
        })
    };
    let one = run(1);
    for threads in [2, 3, 5] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn engines_at_work_at_once_do_not_disturb_each_other() {
    let c = Conv { n: 2, h: 12, w: 8, ci: 32, co: 48, k: 3, stride: 1, pad: 1 };
    let (x, w, dy) = (random(c.x_len(), 1), random(c.w_len(), 2), random(c.y_len(), 3));
    let bytes =
        |engine| ours(engine, c, &x, &w, &dy).map(|values| values.into_iter().map(f32::to_bits).collect::<Vec<_>>());
    let engines = engines();
    let alone: Vec<_> = engines.iter().copied().map(bytes).collect();
    // With and without Winograd: engines that round alike would prove nothing.
    assert!(alone.chunks(2).all(|both| both[0] != both[1]));
    for (a, b) in (0..engines.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
        let start = Barrier::new(2);
        let run = &|index: usize| {
            start.wait();
            // Often enough for the two to meet in every kernel.
            (0..20).all(|_| bytes(engines[index]) == alone[index])
        };
        let are_alike = std::thread::scope(|scope| {
            [a, b].map(|index| scope.spawn(move || run(index))).map(|thread| thread.join().unwrap())
        });
        assert_eq!(are_alike, [true, true], "{:?} and {:?}", engines[a], engines[b]);
    }
}

#[test]
#[should_panic(expected = "at least one image")]
fn an_empty_batch_is_refused() {
    let c = Conv { n: 0, h: 4, w: 4, ci: 16, co: 16, k: 3, stride: 1, pad: 1 };
    conv2d(Engine::default(), c, &[], &vec![0.0; c.w_len()], &mut [0.0_f32; 0]);
}

#[test]
fn batch_norm_and_its_gradients_equal_the_loop() {
    for isa in Isa::available() {
        for (pixels, c) in [(5, 1), (7, 3), (130, 16), (1500, 17), (300, 48)] {
            for (relu, has_residual) in [(false, false), (true, false), (true, true)] {
                let label = format!("{isa} {pixels}×{c} relu {relu} residual {has_residual}");
                let x: Vec<f32> = random(pixels * c, 7).iter().map(|v| v + 3.0).collect();
                let (res, dy) = (random(pixels * c, 8), random(pixels * c, 9));
                let (w, b) = (random(c, 10).iter().map(|v| v + 1.0).collect::<Vec<_>>(), random(c, 11));
                let res = has_residual.then_some(res.as_slice());
                let want = norm_reference(&x, res, &w, &b, relu, &dy);
                let stats: NormStats = norm_stats(isa, &x, c, Ranks::ALONE);
                let scale: Vec<f32> = (0..c).map(|k| w[k] / (stats.var[k] + 1e-5).sqrt()).collect();
                let shift: Vec<f32> = (0..c).map(|k| b[k] - stats.mean[k] * scale[k]).collect();
                let mut y = vec![9.0; x.len()];
                norm_apply(isa, &x, res, &scale, &shift, relu, &mut y);
                assert_close(&format!("{label} y"), &y, &want.y, 1e-5);
                let gate = if relu { Gate::Output(y.as_slice()) } else { Gate::Open };
                let (mut dx, mut dres) = (x.clone(), dy.clone());
                let grad = if has_residual {
                    norm_backward(
                        isa,
                        NormInput::BecomesGradient(&mut dx),
                        gate,
                        &mut dres,
                        &stats,
                        &w,
                        1e-5,
                        Ranks::ALONE,
                    )
                } else {
                    dx = dy.clone();
                    norm_backward(isa, NormInput::Keep(&x), gate, &mut dx, &stats, &w, 1e-5, Ranks::ALONE)
                };
                assert_close(&format!("{label} dx"), &dx, &want.dx, 2e-5);
                assert_close(&format!("{label} dweight"), &grad.weight, &want.dw, 2e-5);
                assert_close(&format!("{label} dbias"), &grad.bias, &want.db, 2e-5);
                if has_residual {
                    assert_close(&format!("{label} dresidual"), &dres, &want.dres, 1e-6);
                }
            }
        }
    }
}

#[test]
fn softmax_sums_equal_the_loop() {
    for isa in Isa::available() {
        for len in [1, 2, 15, 16, 17, 63, 512, 513, 1100] {
            for scale in [0.5_f32, 10.0, 100.0, 200.0] {
                let mut x: Vec<f32> = random(len, len as u64).iter().map(|v| 2.0 * v).collect();
                // Every fifth is left out, but never all.
                x.iter_mut().skip(1).step_by(5).for_each(|v| *v = f32::NEG_INFINITY);
                let kept = || x.iter().filter(|v| v.is_finite()).map(|&v| f64::from(v));
                let sum: f64 = kept().map(|v| (v * f64::from(scale)).exp()).sum();
                let mean = kept().map(|v| (v * f64::from(scale)).exp() * v).sum::<f64>() / sum;
                let ours = softmax_sum(isa, &x, scale);
                let tolerance = 1e-6 + 1e-7 * f64::from(scale);
                assert!((ours.log_sum - sum.ln()).abs() < tolerance, "{isa} {len} {scale}: {ours:?} {}", sum.ln());
                assert!((ours.mean - mean).abs() < 1e-6, "{isa} {len} {scale}: {ours:?} {mean}");
            }
        }
        assert_eq!(softmax_sum(isa, &[f32::NEG_INFINITY; 3], 1.0).log_sum, f64::NEG_INFINITY);
    }
}

#[test]
fn softmax_pairs_equal_the_loop() {
    for isa in Isa::available() {
        for len in [1, 15, 16, 17, 100] {
            let (x, scales) = (random(len, 1), random(len, 2).iter().map(|v| 20.0 + 10.0 * v).collect::<Vec<_>>());
            let offsets: Vec<f32> = random(len, 3).iter().map(|v| 60.0 * v - 20.0).collect();
            let mut ours = x.clone();
            softmax_pair(isa, &mut ours, (10.0, -3.0), &scales, &offsets, 0.25);
            for b in 0..len {
                let e = |scale: f32, offset: f32| (f64::from(x[b]) * f64::from(scale) + f64::from(offset)).exp();
                let want = 0.25 * (e(10.0, -3.0) + e(scales[b], offsets[b]));
                let error = (f64::from(ours[b]) - want).abs();
                assert!(error < 1e-5 * want, "{isa} {b} of {len}: {} vs {want}", ours[b]);
            }
        }
        // Far below what f32 holds: nearly nothing, and not a NaN.
        let mut tiny = [-1.0_f32; 20];
        softmax_pair(isa, &mut tiny, (200.0, -50.0), &[200.0; 20], &[-1e30; 20], 1.0);
        assert!(tiny.iter().all(|&v| (0.0..1e-30).contains(&v)), "{tiny:?}");
    }
}

/// Three processes with a third of the pixels each compute what one does with all of them.
#[test]
fn batch_norm_over_processes_is_that_of_the_whole_batch() {
    let (isa, pixels, c, count) = (Isa::best(), 99, 17, 3);
    // Means that differ between the parts.
    let mut x = random(pixels * c, 1);
    x.iter_mut().enumerate().for_each(|(i, v)| *v += (i / (pixels * c / count)) as f32);
    let (weight, dy) = (random(c, 2), random(pixels * c, 3));
    let stats = norm_stats(isa, &x, c, Ranks::ALONE);
    let mut dx = dy.clone();
    let grad = norm_backward(isa, NormInput::Keep(&x), Gate::Open, &mut dx, &stats, &weight, 1e-5, Ranks::ALONE);

    let (barrier, total) = (Barrier::new(count), std::sync::Mutex::new(Vec::new()));
    let sum = |values: &mut [f64]| {
        let mut all = total.lock().unwrap();
        all.resize(values.len(), 0.0);
        all.iter_mut().zip(values.iter()).for_each(|(a, v)| *a += v);
        drop(all);
        barrier.wait();
        values.copy_from_slice(&total.lock().unwrap());
        if barrier.wait().is_leader() {
            total.lock().unwrap().clear();
        }
        barrier.wait();
    };
    let part = |rank: usize| {
        let range = rank * x.len() / count..(rank + 1) * x.len() / count;
        let (x, mut dx) = (&x[range.clone()], dy[range].to_vec());
        let ranks = Ranks { count, sum: &sum };
        let stats = norm_stats(isa, x, c, ranks);
        let grad = norm_backward(isa, NormInput::Keep(x), Gate::Open, &mut dx, &stats, &weight, 1e-5, ranks);
        (stats, dx, grad)
    };
    let parts: Vec<_> = std::thread::scope(|scope| {
        let part = &part;
        let started: Vec<_> = (0..count).map(|rank| scope.spawn(move || part(rank))).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5 * b.abs().max(1.0));
    for (of_all, _, _) in &parts {
        assert!(near(&of_all.mean, &stats.mean) && near(&of_all.var, &stats.var));
    }
    assert!(near(&parts.iter().flat_map(|(_, dx, _)| dx.clone()).collect::<Vec<_>>(), &dx));
    let added = |of: fn(&NormGrad) -> &[f32]| -> Vec<f32> {
        (0..c).map(|k| parts.iter().map(|(_, _, grad)| of(grad)[k]).sum()).collect()
    };
    assert!(near(&added(|grad| &grad.weight), &grad.weight) && near(&added(|grad| &grad.bias), &grad.bias));
}
