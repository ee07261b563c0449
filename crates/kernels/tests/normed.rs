//! Convolutions that normalise while they read, and gates that are computed: the bytes of the kernels that keep batch norm's
//! output, on every engine, in f32 and bf16.

#[allow(dead_code, reason = "shared with the other tests")]
mod loops;

use loops::{assert_close, engines, random, reference, shapes};
use sogclr_kernels::{
    Conv, Element, Engine, Gate, NormInput, NormRelu, Ranks, bf16, conv2d, conv2d_of_norm, conv2d_of_norm_weight_grad,
    conv2d_weight_grad, norm_apply, norm_backward, norm_stats,
};

/// Shapes that read single pixels: few and many, with channels that are whole lanes.
const PIXELS: &[[usize; 8]] = &[[9, 7, 7, 64, 48, 1, 1, 0], [1, 3, 1, 16, 20, 1, 1, 0], [300, 2, 2, 32, 272, 1, 1, 0]];

fn all_shapes() -> impl Iterator<Item = Conv> {
    let pixels = PIXELS.iter().map(|&[n, h, w, ci, co, k, stride, pad]| Conv { n, h, w, ci, co, k, stride, pad });
    shapes().chain(pixels)
}

fn stored<T: Element>(values: &[f32]) -> Vec<T> {
    values.iter().map(|v| T::from_f32(*v)).collect()
}

fn bits<T: Element>(values: &[T]) -> Vec<u32> {
    values.iter().map(|v| v.to_f32().to_bits()).collect()
}

/// Scales of either sign and shifts that close about half of the gates, most of a border's would-be values among the open ones.
fn line(channels: usize) -> (Vec<f32>, Vec<f32>) {
    let scale = random(channels, 20).iter().map(|v| 3.0 * v).collect();
    (scale, random(channels, 21).iter().map(|v| v + 0.2).collect())
}

/// y and dw of the norm that is read, and of the norm that was kept.
fn both_ways<T: Element>(engine: Engine, c: Conv) -> [(Vec<T>, Vec<f32>); 2] {
    let (x, w, dy) = (stored::<T>(&random(c.x_len(), 1)), random(c.w_len(), 2), stored::<T>(&random(c.y_len(), 3)));
    let (scale, shift) = line(c.ci);
    let norm = NormRelu { scale: &scale, shift: &shift };
    let outputs = || (vec![T::from_f32(9.0); c.y_len()], vec![9.0; c.w_len()]);
    let ((mut y, mut dw), (mut kept_y, mut kept_dw)) = (outputs(), outputs());
    conv2d_of_norm(engine, c, &x, norm, &w, &mut y);
    conv2d_of_norm_weight_grad(engine, c, &x, norm, &dy, &mut dw);
    let mut kept = stored::<T>(&x.iter().map(|_| 9.0).collect::<Vec<_>>());
    norm_apply(engine.isa, &x, None, &scale, &shift, true, &mut kept);
    conv2d(engine, c, &kept, &w, &mut kept_y);
    conv2d_weight_grad(engine, c, &kept, &dy, &mut kept_dw);
    [(y, dw), (kept_y, kept_dw)]
}

fn check<T: Element>(what: &str) {
    for (engine, c) in engines().into_iter().flat_map(|engine| all_shapes().map(move |c| (engine, c))) {
        let [(y, dw), (kept_y, kept_dw)] = both_ways::<T>(engine, c);
        assert!(bits(&y) == bits(&kept_y), "{what} y, {engine:?} {c:?}");
        assert!(bits(&dw) == bits(&kept_dw), "{what} dw, {engine:?} {c:?}");
    }
}

#[test]
fn a_norm_that_is_read_gives_the_bytes_of_one_that_was_kept() {
    check::<f32>("f32");
    check::<bf16>("bf16");
}

#[test]
fn a_norm_that_is_read_equals_the_loop() {
    for c in all_shapes() {
        let (x, w, dy) = (random(c.x_len(), 1), random(c.w_len(), 2), random(c.y_len(), 3));
        let (scale, shift) = line(c.ci);
        let channel = |at: usize| at % c.ci;
        let exact =
            |(at, v): (usize, &f32)| f64::from(*v) * f64::from(scale[channel(at)]) + f64::from(shift[channel(at)]);
        let open: Vec<f32> = x.iter().enumerate().map(exact).map(|v| v.max(0.0) as f32).collect();
        let want = reference(c, &open, &w, &dy);
        for engine in engines() {
            let [(y, dw), _] = both_ways::<f32>(engine, c);
            assert_close(&format!("{engine:?} {c:?} y"), &y, &want.y, 1e-5);
            assert_close(&format!("{engine:?} {c:?} dw"), &dw, &want.dw, 1e-5);
        }
    }
}

/// dx, dweight and dbias with the gate of an output that was kept, and with one that is computed.
fn gates_agree<T: Element>(what: &str) {
    for (engine, channels) in engines().into_iter().flat_map(|engine| [1, 16, 19, 48].map(|c| (engine, c))) {
        let isa = engine.isa;
        let x = stored::<T>(&random(700 * channels, 4));
        let dy = stored::<T>(&random(x.len(), 5));
        let stats = norm_stats(isa, &x, channels, Ranks::ALONE);
        let (scale, shift) = line(channels);
        let mut y = dy.clone();
        norm_apply(isa, &x, None, &scale, &shift, true, &mut y);
        let closed = y.iter().filter(|v| v.to_f32() == 0.0).count();
        assert!(closed > 0 && closed < y.len(), "gates of both kinds");
        let run = |gate: Gate<T>| {
            let mut dx = dy.clone();
            let input = NormInput::Keep(&x[..]);
            let grad = norm_backward(isa, input, gate, &mut dx, &stats, &scale, 1e-5, Ranks::ALONE);
            (bits(&dx), grad)
        };
        let computed = run(Gate::Input(NormRelu { scale: &scale, shift: &shift }));
        assert!(computed == run(Gate::Output(&y)), "{what} {isa} {channels} channels");
        assert!(computed != run(Gate::Open), "{what} {isa}: the gate counts");
    }
}

#[test]
fn a_gate_that_is_computed_is_that_of_the_output() {
    gates_agree::<f32>("f32");
    gates_agree::<bf16>("bf16");
}

#[test]
fn a_nan_survives_a_norm_that_is_read() {
    for (engine, k) in engines().into_iter().flat_map(|engine| [1, 3].map(|k| (engine, k))) {
        let c = Conv { n: 1, h: 4, w: 4, ci: 16, co: 16, k, stride: 1, pad: k / 2 };
        let (mut x, w) = (random(c.x_len(), 1), random(c.w_len(), 2));
        x[5 * 16] = f32::NAN;
        let (ones, zeros, mut y) = (vec![1.0; 16], vec![0.0; 16], vec![0.0; c.y_len()]);
        conv2d_of_norm(engine, c, &x, NormRelu { scale: &ones, shift: &zeros }, &w, &mut y);
        assert!(y[5 * 16].is_nan(), "{engine:?} {k}");
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_byte() {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let of = |c| {
                let ([a, _], [b, _]) =
                    (both_ways::<f32>(Engine::default(), c), both_ways::<bf16>(Engine::default(), c));
                (bits(&a.0), bits(&a.1), bits(&b.0), bits(&b.1))
            };
            all_shapes().map(of).collect::<Vec<_>>()
        })
    };
    let one = run(1);
    assert!([2, 3, 5].into_iter().all(|threads| run(threads) == one));
}

#[test]
#[should_panic(expected = "a scale and a shift for each channel")]
fn a_norm_of_other_channels_is_refused() {
    let c = Conv { n: 1, h: 2, w: 2, ci: 16, co: 16, k: 1, stride: 1, pad: 0 };
    let norm = NormRelu { scale: &[1.0], shift: &[0.0] };
    conv2d_of_norm(Engine::default(), c, &[0.0; 64], norm, &[0.0; 256], &mut [0.0; 64]);
}
