//! The kernels of transformers with bf16 activations: against f64 loops on rounded inputs, against each other and those of f32, and
//! their error on inputs that were not rounded.

mod token_loops;

use sogclr_kernels::{
    Activation, Attention, Isa, Linear, attention, attention_grad, bf16, layer_norm, layer_norm_grad, linear,
    linear_activate, linear_input_grad, linear_weight_grad, round_to,
};
use token_loops::{
    LINEAR, activation_in_f64, assert_close, assert_slopes, assert_slopes_within, attention_in_f64, attentions, larger,
    linear_in_f64, norm_in_f64, random, weighted, wide, with_threads,
};

/// Half the distance between neighbours, relative: what rounding may take away.
const HALF_STEP: f64 = 1.0 / 256.0;
/// Of the largest value: what is rounded inside attention.
const WEIGHTS: f64 = 1e-5;
const GRADIENT: f64 = 1.0 / 128.0;

fn narrow(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|&v| bf16::from_f32(v)).collect()
}

fn widen(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|v| v.to_f32()).collect()
}

fn rounded(values: &[f32]) -> Vec<f32> {
    widen(&narrow(values))
}

fn nan(len: usize) -> Vec<bf16> {
    vec![bf16::NAN; len]
}

/// As [`assert_close`], for values that were rounded once more.
fn assert_rounded(label: &str, ours: &[bf16], want: &[f64], tolerance: f64) {
    let scale = want.iter().fold(1e-3_f64, |max, v| max.max(v.abs()));
    assert_eq!(ours.len(), want.len(), "{label}");
    for (index, (ours, want)) in ours.iter().zip(want).enumerate() {
        let error = (f64::from(ours.to_f32()) - want).abs();
        assert!(error <= tolerance * scale + HALF_STEP * want.abs(), "{label} [{index}]: {ours} vs {want}");
    }
}

/// The operands of a layer.
#[derive(Clone)]
struct Layer {
    shape: Linear,
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
    dy: Vec<f32>,
    factor: Vec<f32>,
}

fn layers() -> impl Iterator<Item = Layer> {
    LINEAR.iter().map(|&[rows, input, output]| Layer {
        shape: Linear { rows, input, output },
        x: random(rows * input, 1),
        weight: random(output * input, 2),
        bias: random(output, 3),
        residual: random(rows * output, 4),
        dy: random(rows * output, 5),
        factor: random(rows * input, 6),
    })
}

/// dx, dw and db by loops.
fn gradients_in_f64(l: &Layer) -> [Vec<f64>; 3] {
    let Linear { rows, input, output } = l.shape;
    let at = |values: &[f32], k: usize| f64::from(values[k]);
    let (mut dx, mut dw, mut db) = (vec![0.0; rows * input], vec![0.0; output * input], vec![0.0; output]);
    for (r, o) in (0..rows).flat_map(|r| (0..output).map(move |o| (r, o))) {
        db[o] += at(&l.dy, r * output + o);
        for i in 0..input {
            dx[r * input + i] += at(&l.dy, r * output + o) * at(&l.weight, o * input + i);
            dw[o * input + i] += at(&l.dy, r * output + o) * at(&l.x, r * input + i);
        }
    }
    [dx, dw, db]
}

/// What the kernels make of a layer. Outputs start as garbage: every element must be written.
#[derive(Debug, PartialEq)]
struct Outputs {
    y: Vec<bf16>,
    added: Vec<f32>,
    dx: Vec<bf16>,
    scaled: Vec<bf16>,
    dw: Vec<f32>,
    db: Vec<f32>,
}

fn run(isa: Isa, l: &Layer) -> Outputs {
    let Linear { rows, input, output } = l.shape;
    let (x, dy, factor) = (narrow(&l.x), narrow(&l.dy), narrow(&l.factor));
    let (mut y, mut added) = (nan(rows * output), vec![f32::NAN; rows * output]);
    linear(isa, l.shape, &x, &l.weight, &l.bias, None, &mut y);
    linear(isa, l.shape, &x, &l.weight, &l.bias, Some(&l.residual), &mut added);
    let (mut dx, mut scaled) = (nan(rows * input), nan(rows * input));
    linear_input_grad(isa, l.shape, &dy, &l.weight, None, &mut dx);
    linear_input_grad(isa, l.shape, &dy, &l.weight, Some(&factor), &mut scaled);
    let (mut dw, mut db) = (vec![f32::NAN; output * input], vec![f32::NAN; output]);
    linear_weight_grad(isa, l.shape, &x, &dy, &mut dw, &mut db);
    Outputs { y, added, dx, scaled, dw, db }
}

#[test]
fn linear_layers_and_their_gradients_equal_the_loop() {
    for l in layers() {
        // Weights are rounded by the kernels: here they are before, so that the loop has the same.
        let l =
            Layer { x: rounded(&l.x), weight: rounded(&l.weight), dy: rounded(&l.dy), factor: rounded(&l.factor), ..l };
        let want = linear_in_f64(l.shape, &l.x, &l.weight, &l.bias);
        let added: Vec<f64> = want.iter().zip(&l.residual).map(|(y, r)| y + f64::from(*r)).collect();
        let [dx, dw, db] = gradients_in_f64(&l);
        let scaled: Vec<f64> = dx.iter().zip(&l.factor).map(|(d, f)| d * f64::from(*f)).collect();
        for isa in Isa::available() {
            let label = |what: &str| format!("{isa} {:?} {what}", l.shape);
            let ours = run(isa, &l);
            assert_rounded(&label("y"), &ours.y, &want, 1e-5);
            assert_close(&label("y + residual"), &ours.added, &added, 1e-5);
            assert_rounded(&label("dx"), &ours.dx, &dx, 1e-5);
            assert_rounded(&label("dx·factor"), &ours.scaled, &scaled, 1e-5);
            assert_close(&label("dw"), &ours.dw, &dw, 1e-5);
            assert_close(&label("db"), &ours.db, &db, 1e-5);
        }
    }
}

/// The sets add the same products in the same order.
#[test]
fn linear_layers_have_the_same_bits_under_every_instruction_set() {
    for l in layers() {
        let portable = run(Isa::PORTABLE, &l);
        for isa in Isa::available() {
            assert!(run(isa, &l) == portable, "{isa} {:?}", l.shape);
        }
    }
}

fn rms(ours: &[f32], want: &[f64]) -> f64 {
    let squares = ours.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).powi(2));
    (squares.sum::<f64>() / want.len() as f64).sqrt()
}

/// On inputs that are not rounded, the error of an ideal bf16 layer: inputs and weights rounded, sums exact, output rounded.
/// PyTorch's is no smaller, and ours may be half as large again.
#[test]
fn errors_stay_near_those_of_rounding_alone() {
    for l in layers().filter(|l| l.shape.input > 32) {
        let ideal = Layer { x: rounded(&l.x), weight: rounded(&l.weight), dy: rounded(&l.dy), ..l.clone() };
        let (exact, [dx, dw, _]) = (linear_in_f64(l.shape, &l.x, &l.weight, &l.bias), gradients_in_f64(&l));
        let (ideal_y, [ideal_dx, ideal_dw, _]) =
            (linear_in_f64(l.shape, &ideal.x, &ideal.weight, &l.bias), gradients_in_f64(&ideal));
        let out = |values: &[f64]| widen(&values.iter().map(|&v| bf16::from_f64(v)).collect::<Vec<_>>());
        let sums: Vec<f32> = ideal_dw.iter().map(|&v| v as f32).collect();
        for isa in Isa::available() {
            let ours = run(isa, &l);
            for (what, ours, ideal, exact) in [
                ("y", widen(&ours.y), out(&ideal_y), &exact),
                ("dx", widen(&ours.dx), out(&ideal_dx), &dx),
                ("dw", ours.dw, sums.clone(), &dw),
            ] {
                let ratio = rms(&ours, exact) / rms(&ideal, exact);
                assert!(ratio <= 1.5, "{what} {isa} {:?}: {ratio:.2} times the error of rounding", l.shape);
            }
        }
    }
}

#[test]
fn an_activated_layer_is_the_activation_of_the_layer() {
    for l in layers() {
        let (x, weight) = (rounded(&l.x), rounded(&l.weight));
        for activation in [Activation::Gelu, Activation::QuickGelu] {
            let before = linear_in_f64(l.shape, &x, &weight, &l.bias);
            let f = |x: f64| activation_in_f64(activation, x);
            let want: Vec<f64> = before.iter().map(|&x| f(x)).collect();
            let slopes: Vec<f64> = before.iter().map(|&x| (f(x + 1e-5) - f(x - 1e-5)) / 2e-5).collect();
            for isa in Isa::available() {
                let (mut y, mut slope) = (nan(want.len()), nan(want.len()));
                linear_activate(isa, l.shape, &narrow(&x), &weight, &l.bias, activation, &mut y, &mut slope);
                assert_rounded(&format!("{isa} {:?} {activation:?}", l.shape), &y, &want, 1e-5);
                assert_rounded(&format!("{isa} {:?} {activation:?} slope", l.shape), &slope, &slopes, 1e-5);
            }
        }
    }
}

/// It reads and adds f32; what a branch reads of it, and the gradient that comes from there, are bf16.
#[test]
fn layer_norm_is_that_of_f32_rounded_once_and_equals_the_loop() {
    for (rows, width, epsilon) in [(1, 1, 1.0), (3, 2, 1e-5), (5, 17, 1e-6), (70, 48, 1e-5), (33, 100, 0.5)] {
        let (x, dy, other) = (larger(rows * width, 1, 2.0), rounded(&random(rows * width, 2)), random(rows * width, 3));
        let (weight, bias) = (larger(width, 4, 1.5), random(width, 5));
        let f = |x: &[f64], w: &[f64], b: &[f64]| weighted(&norm_in_f64(x, w, b, f64::from(epsilon)), &dy);
        let (wide_x, wide_w, wide_b) = (wide(&x), wide(&weight), wide(&bias));
        let want = norm_in_f64(&wide_x, &wide_w, &wide_b, f64::from(epsilon));
        for isa in Isa::available() {
            let label = |what: &str| format!("{isa} {rows}×{width}, ε {epsilon}: {what}");
            let (mut y, mut y32, mut stats) = (nan(x.len()), vec![f32::NAN; x.len()], vec![f32::NAN; 2 * rows]);
            layer_norm(isa, &x, &weight, &bias, epsilon, &mut y32, &mut stats);
            layer_norm(isa, &x, &weight, &bias, epsilon, &mut y, &mut stats);
            assert_rounded(&label("y"), &y, &want, 1e-5);
            assert_eq!(y, narrow(&y32), "{}", label("y"));
            let (mut dx, mut dx32) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
            let grads = layer_norm_grad(isa, &x, &weight, &stats, &narrow(&dy), None, &mut dx);
            assert_slopes(&label("dx"), &dx, &x, 3, |x| f(x, &wide_w, &wide_b));
            assert_slopes(&label("dw"), &grads.0, &weight, 1, |w| f(&wide_x, w, &wide_b));
            assert_slopes(&label("db"), &grads.1, &bias, 1, |b| f(&wide_x, &wide_w, b));
            layer_norm_grad(isa, &x, &weight, &stats, &narrow(&dy), Some(&other), &mut dx);
            layer_norm_grad(isa, &x, &weight, &stats, &dy, Some(&other), &mut dx32);
            assert_eq!(dx, dx32, "{}", label("dx and another gradient"));
        }
    }
}

fn run_attention(isa: Isa, shape: Attention, all: &[bf16], d_out: &[bf16]) -> (Vec<bf16>, Vec<f32>, Vec<bf16>) {
    let (mut out, mut sums, mut d_all) = (nan(shape.out_len()), vec![f32::NAN; shape.sums_len()], nan(all.len()));
    attention(isa, shape, all, &mut out, &mut sums);
    attention_grad(isa, shape, all, &out, &sums, d_out, &mut d_all);
    (out, sums, d_all)
}

#[test]
fn attention_and_its_gradient_equal_the_loop() {
    for shape in attentions() {
        let (all, d_out) = (rounded(&larger(3 * shape.out_len(), 1, 2.0)), rounded(&random(shape.out_len(), 2)));
        let want = attention_in_f64(shape, &wide(&all));
        for isa in Isa::available() {
            let (out, _, d_all) = run_attention(isa, shape, &narrow(&all), &narrow(&d_out));
            assert_rounded(&format!("{isa} {shape:?}"), &out, &want, WEIGHTS);
            let step = (all.len() / 150).next_multiple_of(2) + 1;
            // The output is a part of the gradient: its rounding adds to that of the gradient itself.
            assert_slopes_within(&format!("{isa} {shape:?} gradient"), &widen(&d_all), &all, step, GRADIENT, |all| {
                weighted(&attention_in_f64(shape, all), &d_out)
            });
        }
    }
}

#[test]
fn bytes_do_not_depend_on_the_number_of_threads() {
    let heads = Attention { n: 3, length: 61, heads: 5, size: 12, causal: true };
    let (all, d_out) = (narrow(&random(3 * heads.out_len(), 5)), narrow(&random(heads.out_len(), 6)));
    let all_of_it = || {
        let isa = Isa::best();
        let layer = |l: Layer| {
            let (x, dy, rows) = (narrow(&l.x), narrow(&l.dy), l.shape.rows);
            let (mut y, mut slope) = (nan(dy.len()), nan(dy.len()));
            linear_activate(isa, l.shape, &x, &l.weight, &l.bias, Activation::Gelu, &mut y, &mut slope);
            let (ones, mut stats) = (vec![1.0; l.shape.input], vec![0.0; 2 * rows]);
            let (mut norm, mut dx) = (nan(x.len()), vec![0.0; x.len()]);
            layer_norm(isa, &l.x, &ones, &ones, 1e-6, &mut norm, &mut stats);
            let grads = layer_norm_grad(isa, &l.x, &ones, &stats, &norm, None, &mut dx);
            (run(isa, &l), y, slope, norm, dx, grads)
        };
        (layers().map(layer).collect::<Vec<_>>(), run_attention(isa, heads, &all, &d_out))
    };
    let one = with_threads(1, all_of_it);
    for threads in [2, 3, 7] {
        assert!(with_threads(threads, all_of_it) == one, "{threads} threads");
    }
}

#[test]
fn values_are_rounded_to_the_nearest() {
    for (isa, len) in Isa::available().into_iter().flat_map(|isa| [1, 16, 33, 70_001].map(|len| (isa, len))) {
        let values = larger(len, 1, 3.0);
        let mut ours = nan(len);
        round_to(isa, &values, &mut ours);
        assert!(ours == narrow(&values), "{isa} {len}");
    }
}
