//! Losses of image–text pairs over ten steps of state against PyTorch, plain f64 loops and finite differences.

use crate::files::{Golden, json};
use ndarray::{Axis, Ix2};
use sogclr::loss::{
    Clip, EmbeddingSets, Gamma, Individual, Loss, LossInput, LossOutput, PairTemperature, SetName, SigLip, TwoWay,
};
use sogclr::math::{Matrix, SampleRng, UnitRows};
use sogclr::state::{LOG_U, LOG_U_TEXT, SampleState, TAU, TAU_TEXT};

/// One evaluation on raw embeddings; gradients w.r.t. the raw images and texts.
fn evaluate(loss: &dyn Loss, raw: &[Matrix; 2], ids: &[usize], state: &SampleState) -> (LossOutput, [Matrix; 2]) {
    let [images, texts] = raw.clone().map(UnitRows::new);
    let sets = EmbeddingSets::new(vec![(SetName::View(0), images), (SetName::Text, texts)]);
    let ours = 0..ids.len();
    let input = LossInput { sets: &sets, ids, labels: None, queue: None, large_views: 1, ours, state, epoch: 0 };
    let out = loss.forward(&input).unwrap();
    assert_eq!(out.grads.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [SetName::View(0), SetName::Text]);
    let grads = [0, 1].map(|k| sets.get(out.grads[k].0).unwrap().backward(0, out.grads[k].1.clone()));
    (out, grads)
}

fn two_way(temperature: f64, gamma: f64, learned: PairTemperature, include_positive: bool) -> TwoWay {
    TwoWay { temperature, learned, gamma: Gamma::Constant { value: gamma }, include_positive }
}

fn assert_close(what: &str, ours: f64, want: f64, tolerance: f64) {
    assert!((ours - want).abs() <= tolerance, "{what}: ours {ours}, golden {want}");
}

#[test]
fn losses_of_pairs_follow_pytorch() {
    let (golden, info) = (Golden::open("pairs.safetensors"), json("pairs.json"));
    let samples = info["samples"].as_u64().unwrap() as usize;
    let individual: Individual = serde_json::from_value(info["individual"].clone()).unwrap();
    let rho = info["rho"].as_f64().unwrap();
    for kind in info["kinds"].as_array().unwrap().iter().map(|kind| kind.as_str().unwrap()) {
        for (c, config) in info["configs"].as_array().unwrap().iter().enumerate() {
            let (tau, gamma) = (config["tau"].as_f64().unwrap(), config["gamma"].as_f64().unwrap());
            let loss: Box<dyn Loss> = match kind {
                "clip" => Box::new(Clip { temperature: tau }),
                "siglip" => Box::new(SigLip { temperature: tau, bias: info["bias"].as_f64().unwrap() }),
                "sogclr" => Box::new(two_way(tau, gamma, PairTemperature::Fixed, false)),
                "sogclr_positive" => Box::new(two_way(tau, gamma, PairTemperature::Fixed, true)),
                "isogclr" => Box::new(two_way(tau, gamma, PairTemperature::Individual(individual), false)),
                "fastclip" => Box::new(two_way(tau, gamma, PairTemperature::Global { rho }, false)),
                other => panic!("unknown kind {other}"),
            };
            // exp(s/τ) magnifies the f32 rounding of s by 1/τ.
            let lowest = if kind == "isogclr" { individual.range[0] } else { tau };
            let tolerance = 1e-6 / lowest;
            let mut state = SampleState::new(samples, loss.columns());
            for t in 0..info["steps"].as_u64().unwrap() as usize {
                let step = |name: &str| {
                    let all = golden.get(name);
                    all.index_axis(Axis(0), t).into_dimensionality::<Ix2>().unwrap().mapv(|v| v as f32)
                };
                let ids: Vec<usize> = golden.get("ids").index_axis(Axis(0), t).iter().map(|&id| id as usize).collect();
                let (out, grads) = evaluate(loss.as_ref(), &[step("images"), step("texts")], &ids, &state);
                let label = format!("{kind}.c{c} step {t}");
                let field = |name: &str| format!("{kind}.c{c}.{name}");
                let want = golden.get(&field("loss"))[[t]];
                assert_close(&format!("{label} loss"), out.loss, want, tolerance * want.abs().max(1.0));
                if golden.has(&field("objective")) {
                    let want = golden.get(&field("objective"))[[t]];
                    assert_close(&format!("{label} objective"), out.objective, want, tolerance * want.abs().max(1.0));
                }
                for (side, grad) in ["image", "text"].into_iter().zip(&grads) {
                    let want = step(&field(&format!("grad_{side}")));
                    let scale = want.iter().fold(1e-3_f64, |max, v| max.max(f64::from(v.abs())));
                    for (ours, want) in grad.iter().zip(&want) {
                        let label = format!("{label} grad {side}");
                        assert_close(&label, (*ours).into(), (*want).into(), 20.0 * tolerance * scale);
                    }
                }
                let parameters: Vec<&str> = match kind {
                    "clip" => vec!["log_scale"],
                    "siglip" => vec!["log_scale", "bias"],
                    "fastclip" => vec!["tau"],
                    _ => vec![],
                };
                let names: Vec<&str> = out.parameter_grads.iter().map(|(name, _)| *name).collect();
                assert_eq!(names, parameters, "{label}");
                for (name, ours) in &out.parameter_grads {
                    let want = golden.get(&field(&format!("parameter_{name}")))[[t]];
                    let scale = want.abs().max(1.0);
                    assert_close(&format!("{label} {name}"), *ours, want, 20.0 * tolerance * scale);
                }
                state.commit(out.update);
                for (side, log_u, tau_name) in [("image", LOG_U, TAU), ("text", LOG_U_TEXT, TAU_TEXT)] {
                    if !golden.has(&field(&format!("log_u_{side}"))) {
                        continue;
                    }
                    let of_step = |name: &str| golden.get(&field(name)).index_axis(Axis(0), t).to_owned();
                    for (id, &want) in of_step(&format!("log_u_{side}")).iter().enumerate() {
                        let ours = state.seen(log_u, id);
                        assert_eq!(ours.is_none(), want.is_nan(), "{label}: sample {id}");
                        let label = format!("{label} ln u {side} {id}");
                        ours.into_iter().for_each(|ours| assert_close(&label, ours, want, 10.0 * tolerance));
                    }
                    if kind == "isogclr" {
                        for (id, &want) in of_step(&format!("tau_{side}")).iter().enumerate() {
                            let ours = state.seen(tau_name, id).unwrap_or(tau);
                            assert_close(&format!("{label} tau {side} {id}"), ours, want, 10.0 * tolerance);
                        }
                    }
                }
            }
        }
    }
}

fn random(seed: u64, batch: usize, dim: usize) -> [Matrix; 2] {
    let mut rng = SampleRng::weights(seed, "pairs");
    [0, 1].map(|_| Matrix::from_shape_fn((batch, dim), |_| rng.normal()))
}

/// s [B, B] of the normalised rows in f64
fn similarities(raw: &[Matrix; 2]) -> Vec<Vec<f64>> {
    let unit = |m: &Matrix| -> Vec<Vec<f64>> {
        m.outer_iter()
            .map(|row| {
                let norm = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
                row.iter().map(|&v| f64::from(v) / norm).collect()
            })
            .collect()
    };
    let (images, texts) = (unit(&raw[0]), unit(&raw[1]));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum();
    images.iter().map(|a| texts.iter().map(|b| dot(a, b)).collect()).collect()
}

fn clip_loop(raw: &[Matrix; 2], tau: f64) -> f64 {
    let s = similarities(raw);
    let batch = s.len();
    let term = |i: usize| {
        let row: f64 = (0..batch).map(|j| (s[i][j] / tau).exp()).sum();
        let column: f64 = (0..batch).map(|j| (s[j][i] / tau).exp()).sum();
        row.ln() + column.ln() - 2.0 * s[i][i] / tau
    };
    (0..batch).map(term).sum::<f64>() / (2 * batch) as f64
}

fn siglip_loop(raw: &[Matrix; 2], tau: f64, bias: f64) -> f64 {
    let s = similarities(raw);
    let mut total = 0.0;
    for (i, row) in s.iter().enumerate() {
        for (j, s) in row.iter().enumerate() {
            let y = if i == j { 1.0 } else { -1.0 };
            total += (1.0 + (-y * (s / tau + bias)).exp()).ln();
        }
    }
    total / s.len() as f64
}

fn assert_finite_difference(raw: &[Matrix; 2], grads: &[Matrix; 2], value: impl Fn(&[Matrix; 2]) -> f64) {
    let h = 4e-3_f32;
    for side in 0..2 {
        for index in ndarray::indices(raw[side].dim()) {
            let shifted = |by: f32| {
                let mut moved = raw.clone();
                moved[side][index] += by;
                value(&moved)
            };
            let numeric = (shifted(h) - shifted(-h)) / f64::from(2.0 * h);
            let ours = f64::from(grads[side][index]);
            assert!((numeric - ours).abs() < 3e-4, "side {side} {index:?}: {numeric} vs {ours}");
        }
    }
}

#[test]
fn clip_and_siglip_are_their_loops_and_finite_differences() {
    let (raw, tau, bias) = (random(1, 5, 6), 0.4, -1.5);
    let (ids, state) = ([0, 1, 2, 3, 4], SampleState::new(5, &[]));
    let (clip, grads) = evaluate(&Clip { temperature: tau }, &raw, &ids, &state);
    assert!((clip.loss - clip_loop(&raw, tau)).abs() < 1e-6);
    assert_finite_difference(&raw, &grads, |raw| clip_loop(raw, tau));
    let (siglip, grads) = evaluate(&SigLip { temperature: tau, bias }, &raw, &ids, &state);
    assert!((siglip.loss - siglip_loop(&raw, tau, bias)).abs() < 1e-6);
    assert_finite_difference(&raw, &grads, |raw| siglip_loop(raw, tau, bias));
    // ∂/∂ln(1/τ) and ∂/∂bias
    let h = 1e-4;
    let by_scale = |f: &dyn Fn(f64) -> f64| (f(tau * f64::exp(-h)) - f(tau * f64::exp(h))) / (2.0 * h);
    assert!((clip.parameter_grads[0].1 - by_scale(&|tau| clip_loop(&raw, tau))).abs() < 1e-5);
    assert!((siglip.parameter_grads[0].1 - by_scale(&|tau| siglip_loop(&raw, tau, bias))).abs() < 1e-5);
    let by_bias = (siglip_loop(&raw, tau, bias + h) - siglip_loop(&raw, tau, bias - h)) / (2.0 * h);
    assert!((siglip.parameter_grads[1].1 - by_bias).abs() < 1e-5);
}

/// Without memory and with the matched pair in the sum, the two-way gradient is τ × CLIP's.
#[test]
fn limits_tie_the_two_way_loss_to_clip() {
    let (raw, tau) = (random(2, 5, 6), 0.3);
    let ids = [0, 1, 2, 3, 4];
    // An old u of any size must not matter at γ = 1.
    let columns = [(LOG_U, 3.0_f32), (LOG_U_TEXT, -2.0)];
    let state = SampleState::from_columns(5, columns.map(|(name, value)| (name.to_owned(), vec![value; 5])).into());
    let (_, ours) = evaluate(&two_way(tau, 1.0, PairTemperature::Fixed, true), &raw, &ids, &state);
    let (_, clip) = evaluate(&Clip { temperature: tau }, &raw, &ids, &SampleState::new(5, &[]));
    for (ours, clip) in ours.iter().flatten().zip(clip.iter().flatten()) {
        assert!((ours - tau as f32 * clip).abs() < 1e-6, "{ours} vs {}", tau as f32 * clip);
    }
}

/// The gradient of the surrogate with its weights held fixed.
#[test]
fn the_two_way_gradient_is_the_finite_difference_of_its_surrogate() {
    let (raw, tau, gamma) = (random(3, 4, 5), 0.3, 0.6);
    let ids = [3, 0, 2, 1];
    let mut state = SampleState::new(4, &[LOG_U, LOG_U_TEXT]);
    state.commit(sogclr::state::StateUpdate {
        ids: vec![0, 2],
        columns: vec![(LOG_U, vec![0.4, -0.3]), (LOG_U_TEXT, vec![0.9, 0.1])],
    });
    let (out, grads) = evaluate(&two_way(tau, gamma, PairTemperature::Fixed, false), &raw, &ids, &state);
    let fixed = similarities(&raw);
    // w[side][i][j] = exp(s/τ)/((B−1)·u_i)
    let weights: Vec<Vec<Vec<f64>>> = [LOG_U, LOG_U_TEXT]
        .iter()
        .enumerate()
        .map(|(side, column)| {
            let s = |i: usize, j: usize| if side == 0 { fixed[i][j] } else { fixed[j][i] };
            (0..4)
                .map(|i| {
                    let g = (0..4).filter(|&j| j != i).map(|j| (s(i, j) / tau).exp()).sum::<f64>() / 3.0;
                    let u = state.seen(column, ids[i]).map_or(g, |old| (1.0 - gamma) * old.exp() + gamma * g);
                    (0..4).map(|j| if j == i { 0.0 } else { (s(i, j) / tau).exp() / (3.0 * u) }).collect()
                })
                .collect()
        })
        .collect();
    let surrogate = |raw: &[Matrix; 2]| {
        let s = similarities(raw);
        let mut total = 0.0;
        for i in 0..4 {
            total -= 2.0 * s[i][i];
            for j in 0..4 {
                total += weights[0][i][j] * s[i][j] + weights[1][i][j] * s[j][i];
            }
        }
        total / 8.0
    };
    assert!((out.loss - surrogate(&raw)).abs() < 1e-6);
    assert_finite_difference(&raw, &grads, surrogate);
}

#[test]
fn losses_of_pairs_are_finite_at_small_temperatures() {
    let alike = [Matrix::ones((4, 3)), Matrix::ones((4, 3))];
    for temperature in [0.005, 0.01, 0.1] {
        for raw in [random(4, 4, 3), alike.clone()] {
            let individual = Individual { rho: 0.3, rate: 0.01, beta: 0.9, clip: 5.0, range: [0.005, 0.7] };
            let learned = PairTemperature::Individual(individual);
            let losses: [Box<dyn Loss>; 4] = [
                Box::new(Clip { temperature }),
                Box::new(SigLip { temperature, bias: -10.0 }),
                Box::new(two_way(temperature, 0.5, PairTemperature::Global { rho: 6.5 }, false)),
                Box::new(two_way(temperature, 0.5, learned, true)),
            ];
            for loss in losses {
                let mut state = SampleState::new(4, loss.columns());
                for _ in 0..3 {
                    let (out, grads) = evaluate(loss.as_ref(), &raw, &[0, 1, 2, 3], &state);
                    assert!(out.loss.is_finite() && out.objective.is_finite(), "τ = {temperature}");
                    assert!(grads.iter().flatten().all(|g| g.is_finite()), "τ = {temperature}");
                    assert!(out.parameter_grads.iter().all(|(_, g)| g.is_finite()), "τ = {temperature}");
                    state.commit(out.update);
                }
            }
        }
    }
}
