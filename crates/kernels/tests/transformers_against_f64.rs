//! The kernels of transformers against f64 loops, their gradients against differences of the loops, over odd shapes, under each
//! instruction set of this CPU, and across threads.

mod token_loops;

use sogclr_kernels::{
    Activation, Attention, Isa, Linear, attention, attention_grad, average_pool, average_pool_grad, layer_norm,
    layer_norm_grad, linear, linear_activate, linear_input_grad, linear_weight_grad,
};
use token_loops::{
    LINEAR, activation_in_f64, assert_close, assert_slopes, attention_in_f64, attentions, larger, linear_in_f64,
    norm_in_f64, random, weighted, wide, with_threads,
};

#[test]
fn linear_layers_and_their_gradients_equal_the_loop() {
    for &[rows, input, output] in LINEAR {
        let shape = Linear { rows, input, output };
        let (x, weight, bias) = (random(rows * input, 1), random(output * input, 2), random(output, 3));
        let (residual, dy, factor) = (random(rows * output, 4), random(rows * output, 5), random(rows * input, 6));
        let want = linear_in_f64(shape, &x, &weight, &bias);
        let added: Vec<f64> = want.iter().zip(&residual).map(|(y, r)| y + f64::from(*r)).collect();
        let at = |values: &[f32], k: usize| f64::from(values[k]);
        let (mut dx, mut dw, mut db) = (vec![0.0; rows * input], vec![0.0; output * input], vec![0.0; output]);
        for (r, o) in (0..rows).flat_map(|r| (0..output).map(move |o| (r, o))) {
            db[o] += at(&dy, r * output + o);
            for i in 0..input {
                dx[r * input + i] += at(&dy, r * output + o) * at(&weight, o * input + i);
                dw[o * input + i] += at(&dy, r * output + o) * at(&x, r * input + i);
            }
        }
        let scaled: Vec<f64> = dx.iter().zip(&factor).map(|(d, f)| d * f64::from(*f)).collect();
        for isa in Isa::available() {
            let label = |what: &str| format!("{isa} {shape:?} {what}");
            let mut y = vec![9.0; rows * output];
            linear(isa, shape, &x, &weight, &bias, None, &mut y);
            assert_close(&label("y"), &y, &want, 1e-5);
            linear(isa, shape, &x, &weight, &bias, Some(&residual), &mut y);
            assert_close(&label("y + residual"), &y, &added, 1e-5);
            let mut ours = vec![9.0; rows * input];
            linear_input_grad(isa, shape, &dy, &weight, None, &mut ours);
            assert_close(&label("dx"), &ours, &dx, 1e-5);
            linear_input_grad(isa, shape, &dy, &weight, Some(&factor), &mut ours);
            assert_close(&label("dx·factor"), &ours, &scaled, 1e-5);
            let (mut ours_w, mut ours_b) = (vec![9.0; output * input], vec![9.0; output]);
            linear_weight_grad(isa, shape, &x, &dy, &mut ours_w, &mut ours_b);
            assert_close(&label("dw"), &ours_w, &dw, 1e-5);
            assert_close(&label("db"), &ours_b, &db, 1e-5);
        }
    }
}

/// A layer of weight 1 passes every value of a row of one on to the activation.
#[test]
fn activations_and_their_slopes_equal_the_formula() {
    let mut x: Vec<f32> = (-1300..=1300).map(|k| k as f32 / 100.0).collect();
    x.extend((-20..=20).map(|k| k as f32 * 1e-5));
    x.push(-0.0);
    let shape = Linear { rows: x.len(), input: 1, output: 1 };
    for activation in [Activation::Gelu, Activation::QuickGelu] {
        let f = |x: f64| activation_in_f64(activation, x);
        for isa in Isa::available() {
            let (mut y, mut slope) = (vec![9.0; x.len()], vec![9.0; x.len()]);
            linear_activate(isa, shape, &x, &[1.0], &[0.0], activation, &mut y, &mut slope);
            for ((&x, &y), &slope) in x.iter().zip(&y).zip(&slope) {
                let x = f64::from(x);
                let (want, want_slope) = (f(x), (f(x + 1e-5) - f(x - 1e-5)) / 2e-5);
                let label = format!("{isa} {activation:?} at {x}");
                assert!((f64::from(y) - want).abs() <= 3e-7 * want.abs().max(0.3), "{label}: {y} vs {want}");
                assert!((f64::from(slope) - want_slope).abs() <= 6e-7, "{label}: slope {slope} vs {want_slope}");
            }
            // Far out it is 0 or x.
            let far = [-1e30, -40.0, 40.0, 1e18];
            let shape = Linear { rows: 4, ..shape };
            let (mut y, mut slope) = ([9.0; 4], [9.0; 4]);
            linear_activate(isa, shape, &far, &[1.0], &[0.0], activation, &mut y, &mut slope);
            assert!(y[..2].iter().all(|y| y.abs() < 1e-6) && y[2..] == far[2..], "{isa} {activation:?} {y:?}");
            let steps = slope.iter().zip([0.0, 0.0, 1.0, 1.0]);
            assert!(steps.clone().all(|(slope, step)| (slope - step).abs() < 1e-6), "{isa} {activation:?} {slope:?}");
        }
    }
}

#[test]
fn an_activated_layer_is_the_activation_of_the_layer() {
    for &[rows, input, output] in LINEAR {
        let shape = Linear { rows, input, output };
        let (x, weight, bias) = (random(rows * input, 1), random(output * input, 2), random(output, 3));
        for activation in [Activation::Gelu, Activation::QuickGelu] {
            let before = linear_in_f64(shape, &x, &weight, &bias);
            let f = |x: f64| activation_in_f64(activation, x);
            let want: Vec<f64> = before.iter().map(|&x| f(x)).collect();
            let slopes: Vec<f64> = before.iter().map(|&x| (f(x + 1e-5) - f(x - 1e-5)) / 2e-5).collect();
            for isa in Isa::available() {
                let (mut y, mut slope) = (vec![9.0; want.len()], vec![9.0; want.len()]);
                linear_activate(isa, shape, &x, &weight, &bias, activation, &mut y, &mut slope);
                assert_close(&format!("{isa} {shape:?} {activation:?}"), &y, &want, 1e-5);
                assert_close(&format!("{isa} {shape:?} {activation:?} slope"), &slope, &slopes, 1e-5);
            }
        }
    }
}

#[test]
fn layer_norm_and_its_gradients_equal_the_loop() {
    for (rows, width, epsilon) in [(1, 1, 1.0), (3, 2, 1e-5), (5, 17, 1e-6), (70, 48, 1e-5), (33, 100, 0.5)] {
        let (x, dy, other) = (larger(rows * width, 1, 2.0), random(rows * width, 2), random(rows * width, 3));
        let (weight, bias) = (larger(width, 4, 1.5), random(width, 5));
        let f = |x: &[f64], w: &[f64], b: &[f64]| weighted(&norm_in_f64(x, w, b, f64::from(epsilon)), &dy);
        let (wide_x, wide_w, wide_b) = (wide(&x), wide(&weight), wide(&bias));
        let want = norm_in_f64(&wide_x, &wide_w, &wide_b, f64::from(epsilon));
        for isa in Isa::available() {
            let label = |what: &str| format!("{isa} {rows}×{width}, ε {epsilon}: {what}");
            let (mut y, mut stats, mut dx) = (vec![9.0; x.len()], vec![9.0; 2 * rows], vec![9.0; x.len()]);
            layer_norm(isa, &x, &weight, &bias, epsilon, &mut y, &mut stats);
            assert_close(&label("y"), &y, &want, 1e-5);
            let (dw, db) = layer_norm_grad(isa, &x, &weight, &stats, &dy, None, &mut dx);
            assert_slopes(&label("dx"), &dx, &x, 3, |x| f(x, &wide_w, &wide_b));
            assert_slopes(&label("dw"), &dw, &weight, 1, |w| f(&wide_x, w, &wide_b));
            assert_slopes(&label("db"), &db, &bias, 1, |b| f(&wide_x, &wide_w, b));
            let mut both = vec![9.0; x.len()];
            layer_norm_grad(isa, &x, &weight, &stats, &dy, Some(&other), &mut both);
            let sum: Vec<f64> = dx.iter().zip(&other).map(|(a, b)| f64::from(a + b)).collect();
            assert_close(&label("dx and another gradient"), &both, &sum, 1e-6);
        }
    }
}

fn run_attention(isa: Isa, shape: Attention, all: &[f32], d_out: &[f32]) -> [Vec<f32>; 3] {
    let (mut out, mut sums) = (vec![9.0; shape.out_len()], vec![9.0; shape.sums_len()]);
    attention(isa, shape, all, &mut out, &mut sums);
    let mut d_all = vec![9.0; all.len()];
    attention_grad(isa, shape, all, &out, &sums, d_out, &mut d_all);
    [out, sums, d_all]
}

#[test]
fn attention_and_its_gradient_equal_the_loop() {
    for shape in attentions() {
        let (all, d_out) = (larger(3 * shape.out_len(), 1, 2.0), random(shape.out_len(), 2));
        let want = attention_in_f64(shape, &wide(&all));
        for isa in Isa::available() {
            let [out, _, d_all] = run_attention(isa, shape, &all, &d_out);
            assert_close(&format!("{isa} {shape:?}"), &out, &want, 1e-5);
            let step = (all.len() / 150).next_multiple_of(2) + 1;
            assert_slopes(&format!("{isa} {shape:?} gradient"), &d_all, &all, step, |all| {
                weighted(&attention_in_f64(shape, all), &d_out)
            });
        }
    }
}

/// Logits of ±thousands: the softmax is one token's.
#[test]
fn attention_survives_large_logits() {
    let shape = Attention { n: 1, length: 20, heads: 1, size: 16, causal: false };
    let all = larger(3 * shape.out_len(), 1, 100.0);
    for isa in Isa::available() {
        let [out, _, d_all] = run_attention(isa, shape, &all, &random(shape.out_len(), 2));
        assert!(out.iter().chain(&d_all).all(|v| v.is_finite()));
        let values = |token: usize| &all[token * 48 + 32..][..16];
        let is_a_value = |out: &[f32]| (0..20).any(|t| values(t).iter().zip(out).all(|(v, o)| (v - o).abs() < 1e-2));
        assert!(out.chunks_exact(16).filter(|out| is_a_value(out)).count() >= 18, "{isa}");
    }
}

#[test]
fn average_pools_and_their_gradients_equal_the_loop() {
    for [n, h, w, c] in [[1, 2, 2, 1], [3, 4, 6, 5], [2, 8, 2, 33]] {
        let (x, dy) = (random(n * h * w * c, 1), random(n * h * w * c / 4, 2));
        let place = |i: usize, r: usize, q: usize, k: usize| ((i * (h / 2) + r / 2) * (w / 2) + q / 2) * c + k;
        let (mut want, mut want_dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
        for (at, x) in x.iter().enumerate() {
            let (k, q, r, i) = (at % c, at / c % w, at / c / w % h, at / c / w / h);
            want[place(i, r, q, k)] += f64::from(*x) / 4.0;
            want_dx[at] = f64::from(dy[place(i, r, q, k)]) / 4.0;
        }
        let (mut y, mut dx) = (vec![9.0; dy.len()], vec![9.0; x.len()]);
        average_pool([h, w, c], &x, &mut y);
        average_pool_grad([h, w, c], &dy, &mut dx);
        assert_close(&format!("{n}×{h}×{w}×{c}"), &y, &want, 1e-6);
        assert_close(&format!("{n}×{h}×{w}×{c} dx"), &dx, &want_dx, 1e-6);
    }
}

#[test]
fn bytes_do_not_depend_on_the_number_of_threads() {
    let shape = Linear { rows: 397, input: 96, output: 200 };
    let (x, dy) = (random(397 * 96, 1), random(397 * 200, 2));
    let (weight, bias) = (random(96 * 200, 3), random(200, 4));
    let heads = Attention { n: 3, length: 61, heads: 5, size: 12, causal: true };
    let (all, d_out) = (random(3 * heads.out_len(), 5), random(heads.out_len(), 6));
    let run = || {
        let isa = Isa::best();
        let (mut y, mut slope) = (vec![0.0; dy.len()], vec![0.0; dy.len()]);
        linear_activate(isa, shape, &x, &weight, &bias, Activation::Gelu, &mut y, &mut slope);
        let mut all_of_it = vec![y, slope];
        let mut dx = vec![0.0; x.len()];
        linear_input_grad(isa, shape, &dy, &weight, None, &mut dx);
        for shape in [shape, Linear { input: 200, output: 96, ..shape }] {
            let (x, dy) = if shape.input == 96 { (&x, &dy) } else { (&dy, &x) };
            let (mut dw, mut db) = (vec![0.0; weight.len()], vec![0.0; shape.output]);
            linear_weight_grad(isa, shape, x, dy, &mut dw, &mut db);
            all_of_it.extend([dw, db]);
        }
        let (mut y, mut stats) = (vec![0.0; x.len()], vec![0.0; 2 * 397]);
        layer_norm(isa, &x, &weight[..96], &bias[..96], 1e-6, &mut y, &mut stats);
        let mut dx_norm = vec![0.0; x.len()];
        let (dw, db) = layer_norm_grad(isa, &x, &weight[..96], &stats, &dx, Some(&y), &mut dx_norm);
        all_of_it.extend([dx, y, stats, dx_norm, dw, db]);
        all_of_it.extend(run_attention(isa, heads, &all, &d_out));
        all_of_it.into_iter().flatten().map(f32::to_bits).collect::<Vec<u32>>()
    };
    let one = with_threads(1, run);
    for threads in [2, 3, 7] {
        assert!(with_threads(threads, run) == one, "{threads} threads");
    }
}
