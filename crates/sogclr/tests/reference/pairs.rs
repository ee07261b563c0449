//! Losses of image–text pairs over ten steps of state against PyTorch, plain f64 loops and finite differences.

// Long: one loop for each loss, each variant and each kind of temperature.

use crate::files::{Golden, json};
use ndarray::{Axis, Ix2};
use sogclr::loss::{
    Clip, EmbeddingSets, Gamma, Individual, Loss, LossInput, LossOutput, PairTemperature, Progress, SetName, SigLip,
    TwoWay, Variant,
};
use sogclr::math::{Matrix, SampleRng};
use sogclr::state::{LOG_U, LOG_U_TEXT, SampleState, StateUpdate, TAU, TAU_GRAD, TAU_GRAD_TEXT, TAU_TEXT};

/// The columns of ln u, τ and v of the images, then of the texts.
const COLUMNS: [[&str; 3]; 2] = [[LOG_U, TAU, TAU_GRAD], [LOG_U_TEXT, TAU_TEXT, TAU_GRAD_TEXT]];

/// One evaluation on raw embeddings; gradients w.r.t. the raw images and texts.
fn evaluate(loss: &dyn Loss, raw: &[Matrix; 2], ids: &[usize], state: &SampleState) -> (LossOutput, [Matrix; 2]) {
    evaluate_in(0, loss, raw, ids, state)
}

fn evaluate_in(
    epoch: usize,
    loss: &dyn Loss,
    raw: &[Matrix; 2],
    ids: &[usize],
    state: &SampleState,
) -> (LossOutput, [Matrix; 2]) {
    let [images, texts] = raw.clone();
    let sets = EmbeddingSets::new(vec![(SetName::View(0), images), (SetName::Text, texts)]);
    let at = Progress { epoch, ..Progress::default() };
    let out = loss.forward(&LossInput { at, ..LossInput::new(&sets, ids, state) }).unwrap();
    assert_eq!(out.grads.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [SetName::View(0), SetName::Text]);
    let grads = [0, 1].map(|k| out.grads[k].1.clone());
    (out, grads)
}

fn two_way(temperature: f64, gamma: f64, learned: PairTemperature, include_positive: bool) -> TwoWay {
    TwoWay { learned, include_positive, ..TwoWay::new(temperature, Gamma::Constant { value: gamma }) }
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
                    let ours = out.objective.unwrap();
                    assert_close(&format!("{label} objective"), ours, want, tolerance * want.abs().max(1.0));
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

/// What anchor i of one side sees: ĝ = mean_j e^{s_ij/τ}, and mean_j e^{s_ij/τ}·s_ij.
fn seen_by(s: &[Vec<f64>], side: usize, i: usize, tau: f64, include_positive: bool) -> (f64, f64) {
    let (mut count, mut g, mut pushed) = (0.0, 0.0, 0.0);
    for j in 0..s.len() {
        if j == i && !include_positive {
            continue;
        }
        let s = if side == 0 { s[i][j] } else { s[j][i] };
        count += 1.0;
        g += (s / tau).exp();
        pushed += (s / tau).exp() * s;
    }
    (g / count, pushed / count)
}

/// Samples 0 and 2 of four have been seen, each side with its own u and τ.
fn seen_before() -> SampleState {
    let mut state = SampleState::new(4, &COLUMNS.concat());
    state.commit(StateUpdate {
        ids: vec![0, 2],
        columns: vec![
            (LOG_U, vec![0.4, -0.3]),
            (TAU, vec![0.25, 0.4]),
            (TAU_GRAD, vec![0.2, -0.1]),
            (LOG_U_TEXT, vec![0.9, 0.1]),
            (TAU_TEXT, vec![0.35, 0.2]),
            (TAU_GRAD_TEXT, vec![-0.3, 0.5]),
        ],
    });
    state
}

const INDIVIDUAL: Individual = Individual { rho: 0.7, rate: 0.02, beta: 0.6, clip: 5.0, range: [0.05, 0.7] };

/// The gradient of the surrogate with its weights held fixed.
#[test]
fn the_two_way_gradient_is_the_finite_difference_of_its_surrogate() {
    let (raw, tau, gamma) = (random(3, 4, 5), 0.3, 0.6);
    let (ids, state) = ([3, 0, 2, 1], seen_before());
    let fixed = similarities(&raw);
    let individual = PairTemperature::Individual(INDIVIDUAL);
    for (learned, include_positive) in
        [(PairTemperature::Fixed, false), (PairTemperature::Fixed, true), (individual, false), (individual, true)]
    {
        let (out, grads) = evaluate(&two_way(tau, gamma, learned, include_positive), &raw, &ids, &state);
        // w[side][i][j] = exp(s/τ_i)/(n·u_i)
        let mut weights = vec![vec![vec![0.0; 4]; 4]; 2];
        for (side, [log_u, tau_name, _]) in COLUMNS.into_iter().enumerate() {
            for (i, &id) in ids.iter().enumerate() {
                let own = state.seen(tau_name, id).filter(|_| learned == individual).unwrap_or(tau);
                let (g, _) = seen_by(&fixed, side, i, own, include_positive);
                let u = state.seen(log_u, id).map_or(g, |old| (1.0 - gamma) * old.exp() + gamma * g);
                for j in (0..4).filter(|&j| include_positive || j != i) {
                    let s = if side == 0 { fixed[i][j] } else { fixed[j][i] };
                    weights[side][i][j] = (s / own).exp() / (if include_positive { 4.0 } else { 3.0 } * u);
                }
            }
        }
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
        assert_close("loss", out.loss, surrogate(&raw), 5e-6);
        assert_finite_difference(&raw, &grads, surrogate);
    }
}

/// Two steps of every variant in plain f64: which u weighs, and what is kept. Samples 0 and 2 have been seen before the first.
#[test]
fn the_two_way_variants_follow_a_plain_loop() {
    let (tau, gamma) = (0.3, 0.6);
    for variant in [Variant::Default, Variant::Algorithm1, Variant::Released] {
        for mut state in [seen_before(), SampleState::new(4, &COLUMNS.concat())] {
            let loss = TwoWay { variant, ..two_way(tau, gamma, PairTemperature::Fixed, false) };
            let mut kept =
                COLUMNS.map(|[log_u, ..]| (0..4).map(|id| state.seen(log_u, id).map(f64::exp)).collect::<Vec<_>>());
            for step in 0..2 {
                let (raw, ids) = (random(3 + step, 3, 5), [[3, 0, 1], [2, 3, 0]][step as usize]);
                let s = similarities(&raw);
                let mut want = (0..3).map(|i| -2.0 * s[i][i]).sum::<f64>();
                let (mut weights, mut next) = (vec![vec![vec![0.0; 3]; 3]; 2], kept.clone());
                for side in 0..2 {
                    let is_fresh = ids.iter().all(|&id| kept[side][id].is_none());
                    for (i, &id) in ids.iter().enumerate() {
                        let (g, pushed) = seen_by(&s, side, i, tau, false);
                        let old = kept[side][id];
                        let mixed = |old: f64| (1.0 - gamma) * old + gamma * g;
                        let (new, used) = match variant {
                            Variant::Algorithm1 => (mixed(old.unwrap_or(g)), old.unwrap_or(g)),
                            Variant::Released if is_fresh => (g, g),
                            Variant::Released => (mixed(old.unwrap_or(0.0)), mixed(old.unwrap_or(0.0))),
                            _ => (mixed(old.unwrap_or(g)), mixed(old.unwrap_or(g))),
                        };
                        next[side][id] = Some(new);
                        want += pushed / used;
                        for j in (0..3).filter(|&j| j != i) {
                            let s = if side == 0 { s[i][j] } else { s[j][i] };
                            weights[side][i][j] = (s / tau).exp() / (2.0 * used);
                        }
                    }
                }
                let (out, grads) = evaluate(&loss, &raw, &ids, &state);
                assert_close(&format!("{variant:?}, step {step}: loss"), out.loss, want / 6.0, 5e-6);
                assert_finite_difference(&raw, &grads, |raw: &[Matrix; 2]| {
                    let s = similarities(raw);
                    let push = |i: usize, j: usize| weights[0][i][j] * s[i][j] + weights[1][i][j] * s[j][i];
                    (0..3).map(|i| -2.0 * s[i][i] + (0..3).map(|j| push(i, j)).sum::<f64>()).sum::<f64>() / 6.0
                });
                state.commit(out.update);
                kept = next;
                for (side, [log_u, ..]) in COLUMNS.into_iter().enumerate() {
                    for &id in &ids {
                        assert_close("ln u", state.seen(log_u, id).unwrap(), kept[side][id].unwrap().ln(), 1e-5);
                    }
                }
            }
        }
    }
}

/// On a first visit u = ĝ, and the objective of a temperature is τ(ln ĝ(τ) + ρ).
#[test]
fn the_gradient_of_a_temperature_is_a_finite_difference() {
    let (raw, ids, tau, h) = (random(5, 5, 6), [4, 0, 3, 1, 2], 0.3, 1e-5);
    let Individual { rho, rate, beta, .. } = INDIVIDUAL;
    let s = similarities(&raw);
    let slope = |side: usize, i: usize| {
        let value = |tau: f64| tau * (seen_by(&s, side, i, tau, false).0.ln() + rho);
        (value(tau + h) - value(tau - h)) / (2.0 * h)
    };

    let global = two_way(tau, 0.6, PairTemperature::Global { rho }, false);
    let (out, _) = evaluate(&global, &raw, &ids, &SampleState::new(5, global.columns()));
    let mean = (0..5).map(|i| slope(0, i) + slope(1, i)).sum::<f64>() / 10.0;
    assert_close("global", out.parameter_grads[0].1, mean, 2e-5);

    let own = two_way(tau, 0.6, PairTemperature::Individual(INDIVIDUAL), false);
    let mut state = SampleState::new(5, own.columns());
    let (out, _) = evaluate(&own, &raw, &ids, &state);
    state.commit(out.update);
    for (side, [_, tau_name, grad_name]) in COLUMNS.into_iter().enumerate() {
        for (i, &id) in ids.iter().enumerate() {
            // v_i = β·∂F/∂τ_i, τ_i ← τ − η·v_i
            let average = beta * slope(side, i);
            assert_close("v", state.seen(grad_name, id).unwrap(), average, 2e-5);
            assert_close("τ", state.seen(tau_name, id).unwrap(), tau - rate * average, 1e-6);
        }
    }
}

/// Three steps of memory in plain f64: sample 5 is met in the second step first, and some gradients are clipped.
#[test]
fn temperatures_with_memory_follow_a_plain_loop() {
    let (tau, gamma) = (0.3, 0.6);
    let individual = Individual { clip: 0.3, ..INDIVIDUAL };
    let Individual { rho, rate, beta, clip, range: [low, high] } = individual;
    for learned in [PairTemperature::Individual(individual), PairTemperature::Global { rho }] {
        let is_global = matches!(learned, PairTemperature::Global { .. });
        let loss = two_way(tau, gamma, learned, false);
        let mut state = SampleState::new(6, loss.columns());
        let (mut u, mut taus, mut averages) = ([[None; 6]; 2], [[tau; 6]; 2], [[0.0; 6]; 2]);
        let (mut clipped, mut free) = (0, 0);
        for (step, ids) in [[0, 1, 2, 3, 4], [5, 3, 0, 4, 2], [1, 5, 2, 0, 3]].into_iter().enumerate() {
            let raw = random(10 + step as u64, 5, 6);
            let (out, _) = evaluate(&loss, &raw, &ids, &state);
            state.commit(out.update);
            let s = similarities(&raw);
            let (mut value, mut objective, mut tau_grad) = (0.0, 0.0, 0.0);
            for side in 0..2 {
                for (i, &id) in ids.iter().enumerate() {
                    let own = taus[side][id];
                    let (g, pushed) = seen_by(&s, side, i, own, false);
                    let new = u[side][id].map_or(g, |old: f64| (1.0 - gamma) * old + gamma * g);
                    u[side][id] = Some(new);
                    value += (pushed / new - s[i][i]) / 10.0;
                    objective += (own * (new.ln() + rho) - s[i][i]) / 10.0;
                    let gradient = new.ln() + rho - pushed / (new * own);
                    tau_grad += gradient / 10.0;
                    if is_global {
                        continue;
                    }
                    let average = &mut averages[side][id];
                    *average = (1.0 - beta) * *average + beta * gradient.max(-clip).min(clip);
                    taus[side][id] = (own - rate * *average).max(low).min(high);
                    *if gradient.abs() > clip { &mut clipped } else { &mut free } += 1;
                }
            }
            assert_close("loss", out.loss, value, 2e-5);
            assert_close("objective", out.objective.unwrap(), objective, 2e-5);
            if is_global {
                assert_close("tau", out.parameter_grads[0].1, tau_grad, 5e-5);
            }
            for (side, names) in COLUMNS.into_iter().enumerate() {
                for &id in &ids {
                    let want = [u[side][id].unwrap().ln(), taus[side][id], averages[side][id]];
                    for (name, want) in names.into_iter().zip(want).take(if is_global { 1 } else { 3 }) {
                        assert_close(&format!("step {step} {name} {id}"), state.seen(name, id).unwrap(), want, 5e-5);
                    }
                }
            }
        }
        assert!(is_global || (clipped > 0 && free > 0), "{clipped} clipped, {free} not");
    }
}

/// ln u of the batch after a step with this γ, and what `gamma_of(ln u, s⁺/τ_i)` makes of it in plain f64.
fn assert_mixed(gamma: Gamma, epoch: usize, gamma_of: impl Fn(f64, f64) -> f64) {
    let (raw, ids, mut state) = (random(6, 4, 5), [3, 0, 2, 1], seen_before());
    let old = state.clone();
    let loss = TwoWay { learned: PairTemperature::Individual(INDIVIDUAL), ..TwoWay::new(0.3, gamma) };
    let (out, _) = evaluate_in(epoch, &loss, &raw, &ids, &state);
    state.commit(out.update);
    let s = similarities(&raw);
    for (side, [log_u, tau_name, _]) in COLUMNS.into_iter().enumerate() {
        for (i, &id) in ids.iter().enumerate() {
            let tau = old.seen(tau_name, id).unwrap_or(0.3);
            let (g, _) = seen_by(&s, side, i, tau, false);
            let mixed = |old: f64| {
                let gamma = gamma_of(old, s[i][i] / tau);
                (1.0 - gamma) * old.exp() + gamma * g
            };
            let want = old.seen(log_u, id).map_or(g, mixed).ln();
            let label = format!("{gamma:?} epoch {epoch}: {log_u} {id}");
            assert_close(&label, state.seen(log_u, id).unwrap(), want, 2e-5);
        }
    }
}

#[test]
fn cosine_gamma_falls_from_one_over_its_epochs() {
    let gamma = Gamma::Cosine { min: 0.2, epochs: 4 };
    // 0.2 + 0.4·(1 + cos(πe/4)), then 0.2
    for (epoch, value) in [(0, 1.0), (1, 0.882_842_712_5), (2, 0.6), (3, 0.317_157_287_5), (4, 0.2), (9, 0.2)] {
        assert_mixed(gamma, epoch, |_, _| value);
    }
}

#[test]
fn adaptive_gamma_compares_u_with_the_positive() {
    for offset in [-0.5, 1.5] {
        // v/(v + e^−c) with v = u·e^{−s⁺/τ}
        assert_mixed(Gamma::Adaptive { offset }, 3, |log_u, logit| {
            let v = log_u.exp() / logit.exp();
            v / (v + f64::exp(-offset))
        });
    }
}

/// γ near 0 keeps u at e^−300, and ĝ/u would be e^300.
#[test]
fn a_stale_average_far_below_the_estimate_stays_finite() {
    let columns = [(LOG_U, -300.0_f32), (LOG_U_TEXT, -250.0)];
    let state = SampleState::from_columns(4, columns.map(|(name, value)| (name.to_owned(), vec![value; 4])).into());
    for include_positive in [false, true] {
        let learned = PairTemperature::Global { rho: 6.5 };
        let loss = TwoWay { gamma: Gamma::Adaptive { offset: 0.0 }, ..two_way(0.1, 1.0, learned, include_positive) };
        let (out, grads) = evaluate(&loss, &random(7, 4, 5), &[0, 1, 2, 3], &state);
        assert!(grads.iter().flatten().all(|g| g.is_finite()));
        assert!((out.loss as f32).is_finite() && (out.parameter_grads[0].1 as f32).is_finite());
    }
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
                    assert!(out.loss.is_finite() && out.objective.unwrap().is_finite(), "τ = {temperature}");
                    assert!(grads.iter().flatten().all(|g| g.is_finite()), "τ = {temperature}");
                    assert!(out.parameter_grads.iter().all(|(_, g)| g.is_finite()), "τ = {temperature}");
                    state.commit(out.update);
                }
            }
        }
    }
}
