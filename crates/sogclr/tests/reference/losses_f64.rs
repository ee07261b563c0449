//! Losses against a plain f64 loop written from the formulas, finite differences, and invariances.

// Long: one loop for each loss, and what ties them together.

use crate::losses::{evaluate, evaluate_labelled, evaluate_sets, views};
use proptest::prelude::*;
use sogclr::loss::{
    Dcl, Debiased, FlatNce, Gamma, Individual, KeyNce, Loss, LossError, LossInput, LossOutput, NearestNce, Negatives,
    NtXent, SetName, SogClr, SupCon, Variant,
};
use sogclr::math::{Matrix, SampleRng, UnitRows};
use sogclr::state::{LOG_U, SampleState, StateUpdate};

pub fn embeddings(seed: u64, batch: usize, dim: usize) -> Vec<Matrix> {
    let mut rng = SampleRng::weights(seed, "embeddings");
    (0..2).map(|_| Matrix::from_shape_fn((batch, dim), |_| rng.normal())).collect()
}

pub fn sogclr(temperature: f64, gamma: f64) -> SogClr {
    SogClr::new(temperature, Gamma::Constant { value: gamma })
}

fn unit(rows: &Matrix) -> Vec<Vec<f64>> {
    rows.outer_iter()
        .map(|row| {
            let norm = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            row.iter().map(|&v| f64::from(v) / norm).collect()
        })
        .collect()
}

/// 2B rows, view-major; every pair looked at one by one.
pub struct Loop {
    z: Vec<Vec<f64>>,
    batch: usize,
}

impl Loop {
    pub fn new(raw: &[Matrix]) -> Self {
        Self { z: raw.iter().flat_map(unit).collect(), batch: raw[0].nrows() }
    }

    pub fn s(&self, a: usize, b: usize) -> f64 {
        self.z[a].iter().zip(&self.z[b]).map(|(x, y)| x * y).sum()
    }

    pub fn positive(&self, a: usize) -> usize {
        (a + self.batch) % (2 * self.batch)
    }

    pub fn negatives(&self, a: usize) -> Vec<usize> {
        (0..2 * self.batch).filter(|b| b % self.batch != a % self.batch).collect()
    }

    /// ĝ_a of eq. (2), mean form
    pub fn g(&self, a: usize, tau: f64) -> f64 {
        let negatives = self.negatives(a);
        negatives.iter().map(|&b| (self.s(a, b) / tau).exp()).sum::<f64>() / negatives.len() as f64
    }
}

#[test]
fn sogclr_equals_the_f64_loop() {
    let (tau, gamma, batch) = (0.2, 0.6, 5);
    let raw = embeddings(3, batch, 7);
    let mut state = SampleState::new(8, &[LOG_U]);
    state.commit(StateUpdate { ids: vec![1, 4], columns: vec![(LOG_U, vec![0.4, -0.3])] });
    let ids = [4, 7, 0, 1, 2];
    let (out, _) = evaluate(&sogclr(tau, gamma), &raw, &ids, &state, 2);

    let all = Loop::new(&raw);
    let (mut loss, mut objective, mut log_u) = (0.0, 0.0, Vec::new());
    for (i, &id) in ids.iter().enumerate() {
        let mut u_views = Vec::new();
        for a in [i, i + batch] {
            let g = all.g(a, tau);
            let u = match state.seen(LOG_U, id) {
                Some(old) => (1.0 - gamma) * old.exp() + gamma * g,
                None => g,
            };
            let negatives = all.negatives(a);
            let push: f64 =
                negatives.iter().map(|&b| (all.s(a, b) / tau).exp() / (negatives.len() as f64 * u) * all.s(a, b)).sum();
            loss += (-all.s(a, all.positive(a)) + push) / (2 * batch) as f64;
            u_views.push(u);
        }
        let u = 0.5 * (u_views[0] + u_views[1]);
        objective += (-all.s(i, i + batch) + tau * u.ln()) / batch as f64;
        log_u.push(u.ln());
    }
    assert!((out.loss - loss).abs() < 1e-6, "{} {loss}", out.loss);
    assert!((out.objective.unwrap() - objective).abs() < 1e-6);
    for (ours, want) in out.update.columns[0].1.iter().zip(log_u) {
        assert!((f64::from(*ours) - want).abs() < 1e-5);
    }
}

/// The TensorFlow program stores u₁ + u₂: S = 2(1−γ)S + γ(ĝ + ĝ′) settles at S/2 = κ·½(ĝ + ĝ′), κ = γ/(2γ−1). With equal
/// views its divisor is κĝ, and it pushes as no memory does with a repulsion of 1/κ.
#[test]
fn the_tf_divisor_settles_at_kappa_times_the_estimate() {
    let (tau, batch) = (0.3, 4);
    let ids: Vec<usize> = (0..batch).collect();
    for (gamma, kappa) in [(0.6, 3.0), (0.7, 1.75), (0.8, 4.0 / 3.0), (0.9, 1.125), (0.99, 0.99 / 0.98)] {
        let tf = SogClr { variant: Variant::Tf, ..sogclr(tau, gamma) };
        for raw in [embeddings(5, batch, 6), vec![embeddings(5, batch, 6).remove(0); 2]] {
            let all = Loop::new(&raw);
            let mut state = SampleState::new(batch, &[LOG_U]);
            let mut grads = Vec::new();
            for _ in 0..200 {
                let (out, found) = evaluate(&tf, &raw, &ids, &state, 2);
                state.commit(out.update);
                grads = found;
            }
            for i in 0..batch {
                let mean = 0.5 * (all.g(i, tau) + all.g(i + batch, tau));
                let settled = 0.5 * state.seen(LOG_U, i).unwrap().exp();
                assert!((settled / mean - kappa).abs() < 1e-4 * kappa, "γ = {gamma}: {} of ĝ", settled / mean);
            }
            if raw[0] == raw[1] {
                let control = SogClr { repulsion: 1.0 / kappa, ..sogclr(tau, 1.0) };
                let (_, want) = evaluate(&control, &raw, &ids, &state, 2);
                for (ours, want) in grads.iter().flatten().zip(want.iter().flatten()) {
                    assert!((ours - want).abs() < 1e-5, "γ = {gamma}: {ours} and {want}");
                }
            }
        }
    }
}

#[test]
fn ntxent_equals_the_f64_loop() {
    let (tau, batch) = (0.3, 4);
    let raw = embeddings(9, batch, 6);
    let (out, _) =
        evaluate(&NtXent { temperature: tau, alpha: None }, &raw, &[0, 1, 2, 3], &SampleState::new(4, &[]), 2);
    let all = Loop::new(&raw);
    let rows = 2 * batch;
    let expected: f64 = (0..rows)
        .map(|a| {
            let denominator: f64 = (0..rows).filter(|&b| b != a).map(|b| (all.s(a, b) / tau).exp()).sum();
            denominator.ln() - all.s(a, all.positive(a)) / tau
        })
        .sum::<f64>()
        / rows as f64;
    assert!((out.loss - expected).abs() < 1e-6, "{} {expected}", out.loss);
}

/// The gradient of SogCLR is that of the surrogate with the weights held fixed: Σ_a [−s⁺ + Σ_b w_ab·s_ab]/(2B).
#[test]
fn sogclr_gradient_is_the_finite_difference_of_the_surrogate() {
    let (tau, gamma, batch) = (0.25, 0.5, 4);
    let raw = embeddings(5, batch, 5);
    let ids = [0, 1, 2, 3];
    let state = SampleState::from_columns(4, [(LOG_U.to_owned(), vec![0.5, f32::NAN, 1.5, -0.5])].into());
    let (_, grads) = evaluate(&sogclr(tau, gamma), &raw, &ids, &state, 2);
    let fixed = Loop::new(&raw);
    let weights: Vec<Vec<(usize, f64)>> = (0..2 * batch)
        .map(|a| {
            let g = fixed.g(a, tau);
            let u = state.seen(LOG_U, ids[a % batch]).map_or(g, |old| (1.0 - gamma) * old.exp() + gamma * g);
            let negatives = fixed.negatives(a);
            let count = negatives.len() as f64;
            negatives.iter().map(|&b| (b, (fixed.s(a, b) / tau).exp() / (count * u))).collect()
        })
        .collect();
    let surrogate = |raw: &[Matrix]| {
        let all = Loop::new(raw);
        let row = |a: usize| weights[a].iter().map(|&(b, w)| w * all.s(a, b)).sum::<f64>() - all.s(a, all.positive(a));
        (0..2 * batch).map(row).sum::<f64>() / (2 * batch) as f64
    };
    assert_finite_difference(&raw, &grads, surrogate);
}

#[test]
fn ntxent_gradient_is_the_finite_difference_of_the_loss() {
    let raw = embeddings(6, 4, 5);
    let loss = NtXent { temperature: 0.4, alpha: None };
    let state = SampleState::new(4, &[]);
    let value = |raw: &[Matrix]| evaluate(&loss, raw, &[0, 1, 2, 3], &state, 2).0.loss;
    let (_, grads) = evaluate(&loss, &raw, &[0, 1, 2, 3], &state, 2);
    assert_finite_difference(&raw, &grads, value);
}

pub fn assert_finite_difference(raw: &[Matrix], grads: &[Matrix], value: impl Fn(&[Matrix]) -> f64) {
    let h = 4e-3_f32;
    for view in 0..raw.len() {
        for index in ndarray::indices(raw[view].dim()) {
            let shifted = |by: f32| {
                let mut moved = raw.to_vec();
                moved[view][index] += by;
                value(&moved)
            };
            let numeric = (shifted(h) - shifted(-h)) / f64::from(2.0 * h);
            let ours = f64::from(grads[view][index]);
            assert!((numeric - ours).abs() < 2e-4, "view {view} {index:?}: {numeric} vs {ours}");
        }
    }
}

#[test]
fn rows_that_are_ours_get_the_gradient_of_the_whole_batch() {
    let raw = embeddings(8, 6, 4);
    let state = SampleState::new(6, &[LOG_U]);
    let ids = [0, 1, 2, 3, 4, 5];
    let (whole, _) = evaluate(&sogclr(0.1, 0.9), &raw, &ids, &state, 2);
    let sets = views(&raw);
    let part = sogclr(0.1, 0.9).forward(&LossInput { ours: 2..5, ..LossInput::new(&sets, &ids, &state) }).unwrap();
    assert_eq!(part.loss, whole.loss);
    assert_eq!(part.update, whole.update);
    for ((_, part), (_, whole)) in part.grads.iter().zip(&whole.grads) {
        let difference = part - &whole.slice(ndarray::s![2..5, ..]);
        assert!(difference.iter().all(|d| d.abs() < 1e-7));
    }
}

#[test]
fn bad_batches_are_refused() {
    let state = SampleState::new(4, &[LOG_U]);
    let try_with = |raw: Vec<Matrix>, ids: &[usize]| {
        let sets = views(&raw);
        sogclr(0.1, 0.9).forward(&LossInput { large_views: 2, ..LossInput::new(&sets, ids, &state) }).err()
    };
    assert_eq!(try_with(embeddings(0, 1, 4), &[0]), Some(LossError::TooFewSamples(1)));
    assert_eq!(try_with(embeddings(0, 2, 4)[..1].to_vec(), &[0, 1]), Some(LossError::Missing(SetName::View(1))));
    let mut broken = embeddings(0, 2, 4);
    broken[1][[1, 2]] = f32::NAN;
    let error = LossError::NonFinite { set: SetName::View(1), sample: 3 };
    assert_eq!(try_with(broken, &[0, 3]), Some(error));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Any temperature from 0.005 to 1 is finite, also for identical and opposite embeddings.
    #[test]
    fn every_temperature_is_finite(exponent in 0.0_f64..1.0, gamma in 0.01_f64..=1.0, seed in 0_u64..1000, kind in 0..3) {
        let temperature = 0.005 * 200.0_f64.powf(exponent);
        let mut raw = embeddings(seed, 4, 3);
        match kind {
            1 => raw = vec![Matrix::ones((4, 3)), Matrix::ones((4, 3))],
            2 => raw[1] = -raw[0].clone(),
            _ => {}
        }
        let mut state = SampleState::new(4, &[LOG_U]);
        for loss in [&sogclr(temperature, gamma) as &dyn Loss, &NtXent { temperature, alpha: None }] {
            for _ in 0..3 {
                let (out, grads) = evaluate(loss, &raw, &[0, 1, 2, 3], &state, 2);
                prop_assert!(out.loss.is_finite() && out.objective.unwrap().is_finite());
                prop_assert!(grads.iter().flatten().all(|g| g.is_finite()));
                state.commit(out.update);
            }
        }
    }

    /// So does every reading of Algorithm 1, with embeddings that move and an old u far from the new ĝ.
    #[test]
    fn every_variant_is_finite(exponent in 0.0_f64..1.0, gamma in 0.51_f64..=1.0, seed in 0_u64..1000, old in -200.0_f32..200.0) {
        let temperature = 0.005 * 200.0_f64.powf(exponent);
        for variant in [Variant::Default, Variant::Algorithm1, Variant::Released, Variant::Tf] {
            let loss = SogClr { variant, ..sogclr(temperature, gamma) };
            let mut state = SampleState::from_columns(4, [(LOG_U.to_owned(), vec![old, f32::NAN, -old, old])].into());
            for step in 0..4 {
                let mut raw = embeddings(seed + step, 4, 3);
                raw[1] = &raw[0] + &(raw[1].clone() * 0.1);
                let (out, grads) = evaluate(&loss, &raw, &[0, 1, 2, 3], &state, 2);
                prop_assert!(out.loss.is_finite() && out.objective.unwrap().is_finite(), "{variant:?} {}", out.loss);
                prop_assert!(grads.iter().flatten().all(|g| g.is_finite()), "{variant:?}");
                state.commit(out.update);
            }
        }
    }

    /// Permuting the batch permutes the gradients and changes nothing else.
    #[test]
    fn the_order_of_the_batch_does_not_matter(seed in 0_u64..1000) {
        let raw = embeddings(seed, 5, 4);
        let order = [3, 0, 4, 1, 2];
        let permuted: Vec<Matrix> = raw.iter().map(|m| m.select(ndarray::Axis(0), &order)).collect();
        let state = SampleState::from_columns(5, [(LOG_U.to_owned(), vec![0.1, 0.9, f32::NAN, -1.0, 2.0])].into());
        for loss in [&sogclr(0.1, 0.7) as &dyn Loss, &NtXent { temperature: 0.1, alpha: None }] {
            let columns = loss.columns();
            let (a, grads_a) = evaluate(loss, &raw, &[0, 1, 2, 3, 4], &state, 2);
            let (b, grads_b) = evaluate(loss, &permuted, &order, &state, 2);
            prop_assert!((a.loss - b.loss).abs() < 1e-6 * a.loss.abs().max(1.0));
            for (ga, gb) in grads_a.iter().zip(&grads_b) {
                let expected = ga.select(ndarray::Axis(0), &order);
                prop_assert!((&expected - gb).iter().all(|d| d.abs() < 1e-5));
            }
            if !columns.is_empty() {
                let (mut first, mut second) = (state.clone(), state.clone());
                first.commit(a.update);
                second.commit(b.update);
                for id in 0..5 {
                    let (x, y) = (first.seen(LOG_U, id).unwrap(), second.seen(LOG_U, id).unwrap());
                    prop_assert!((x - y).abs() < 1e-5);
                }
            }
        }
    }
}

/// Every loss that has no state, with a temperature.
fn stateless(temperature: f64) -> Vec<(&'static str, Box<dyn Loss>)> {
    vec![
        ("simclr", Box::new(NtXent { temperature, alpha: None })),
        ("simo", Box::new(NtXent { temperature, alpha: Some(500.0) })),
        ("dcl", Box::new(Dcl { temperature, sigma: None })),
        ("dclw", Box::new(Dcl { temperature, sigma: Some(0.5) })),
        ("debiased", Box::new(Debiased { temperature, prior: 0.05 })),
        ("supcon", Box::new(SupCon { temperature })),
    ]
}

const LABELS: [u32; 4] = [0, 1, 0, 2];

fn evaluate_four(loss: &dyn Loss, raw: &[Matrix]) -> (LossOutput, Vec<Matrix>) {
    evaluate_labelled(loss, raw, &[0, 1, 2, 3], Some(&LABELS), &SampleState::new(4, loss.columns()), 2)
}

#[test]
fn gradients_are_finite_differences_of_every_stateless_loss() {
    let raw = embeddings(11, 4, 5);
    for (name, loss) in stateless(0.4) {
        let (_, grads) = evaluate_four(loss.as_ref(), &raw);
        println!("{name}");
        assert_finite_difference(&raw, &grads, |raw| evaluate_four(loss.as_ref(), raw).0.loss);
    }
}

#[test]
fn limits_tie_the_losses_together() {
    let raw = embeddings(12, 4, 6);
    let temperature = 0.3;
    let same = |label: &str, a: &dyn Loss, b: &dyn Loss, value: bool| {
        let ((a, da), (b, db)) = (evaluate_four(a, &raw), evaluate_four(b, &raw));
        assert!(!value || (a.loss - b.loss).abs() < 1e-6, "{label}: {} vs {}", a.loss, b.loss);
        for (da, db) in da.iter().flatten().zip(db.iter().flatten()) {
            assert!((da - db).abs() < 1e-6, "{label}: {da} vs {db}");
        }
    };
    let ntxent = NtXent { temperature, alpha: None };
    // K = 2(B−1) negatives.
    same("SiMo with α = K", &NtXent { temperature, alpha: Some(6.0) }, &ntxent, true);
    same("debiased with τ₊ = 0", &Debiased { temperature, prior: 0.0 }, &ntxent, true);
    same("FlatNCE's gradient is DCL's", &FlatNce { temperature }, &Dcl { temperature, sigma: None }, false);
    // Every image a class of its own: one positive.
    let unique = [0_u32, 1, 2, 3];
    let state = SampleState::new(4, &[]);
    let (supcon, grads) = evaluate_labelled(&SupCon { temperature }, &raw, &[0, 1, 2, 3], Some(&unique), &state, 2);
    let (plain, plain_grads) = evaluate_four(&ntxent, &raw);
    assert!((supcon.loss - plain.loss).abs() < 1e-6);
    assert!(grads.iter().flatten().zip(plain_grads.iter().flatten()).all(|(a, b)| (a - b).abs() < 1e-6));
    let by_label = SogClr { by_label: true, ..sogclr(temperature, 0.7) };
    let state = SampleState::new(4, &[LOG_U]);
    let (labelled, grads) = evaluate_labelled(&by_label, &raw, &[0, 1, 2, 3], Some(&unique), &state, 2);
    let (plain, plain_grads) = evaluate(&sogclr(temperature, 0.7), &raw, &[0, 1, 2, 3], &state, 2);
    assert!((labelled.loss - plain.loss).abs() < 1e-9);
    assert!(labelled.update == plain.update && grads == plain_grads, "unique labels are no labels");
}

#[test]
fn every_loss_is_finite_at_a_hundredth() {
    let temperature = 0.01;
    let mut losses = stateless(temperature);
    losses.push(("flatnce", Box::new(FlatNce { temperature })));
    losses.push(("with labels", Box::new(SogClr { by_label: true, ..sogclr(temperature, 0.5) })));
    let individual = Some(Individual { rho: 0.3, rate: 0.01, beta: 0.9, clip: 3.0, range: [0.01, 0.7] });
    losses.push(("isogclr", Box::new(SogClr { individual, ..sogclr(temperature, 0.5) })));
    let random = embeddings(13, 4, 3);
    let same = vec![Matrix::ones((4, 3)), Matrix::ones((4, 3))];
    let opposite = vec![random[0].clone(), -random[0].clone()];
    for raw in [random, same, opposite] {
        for (name, loss) in &losses {
            let mut state = SampleState::new(4, loss.columns());
            for _ in 0..3 {
                let (out, grads) = evaluate_labelled(loss.as_ref(), &raw, &[0, 1, 2, 3], Some(&LABELS), &state, 2);
                assert!(out.loss.is_finite() && out.objective.unwrap().is_finite(), "{name}");
                assert!(grads.iter().flatten().all(|g| g.is_finite()), "{name}");
                state.commit(out.update);
            }
        }
    }
}

#[test]
fn missing_labels_are_refused() {
    let raw = embeddings(14, 4, 3);
    let (sets, state) = (views(&raw), SampleState::new(4, &[]));
    let input = LossInput::new(&sets, &[0, 1, 2, 3], &state);
    assert_eq!(SupCon { temperature: 0.1 }.forward(&input).err(), Some(LossError::NoLabels));
}

/// SCENT: γ_i = 1/(1 + exp(−ln v_i − c)).
#[test]
fn adaptive_gamma_follows_its_formula() {
    let gamma = Gamma::Adaptive { offset: 2.0 };
    assert!((gamma.at(0, -2.0) - 0.5).abs() < 1e-12);
    assert!(gamma.at(9, 5.0) > gamma.at(0, 0.0) && gamma.at(0, 5.0) < 1.0);
}

/// Embeddings of every set that a loss with keys looks at, four samples each.
fn keyed(seed: u64, dim: usize) -> Vec<(SetName, Matrix)> {
    let names = [SetName::View(0), SetName::View(1), SetName::Key(1), SetName::Predictor(0), SetName::Predictor(1)];
    let mut rng = SampleRng::weights(seed, "keyed");
    let mut random = || Matrix::from_shape_fn((4, dim), |_| rng.normal());
    names.into_iter().chain([SetName::Jigsaw]).map(|name| (name, random())).collect()
}

fn with_keys(temperature: f64) -> Vec<(&'static str, Box<dyn Loss>)> {
    const ONE: &[(SetName, f64)] = &[(SetName::View(0), 1.0)];
    const TWO: &[(SetName, f64)] = &[(SetName::View(0), 0.5), (SetName::Jigsaw, 0.5)];
    let keys = |negatives, alpha, queries| Box::new(KeyNce { temperature, negatives, alpha, queries });
    vec![
        ("moco", keys(Negatives::Queue, None, ONE)),
        ("simo", keys(Negatives::Batch, Some(500.0), ONE)),
        ("infomin", keys(Negatives::Queue, None, TWO)),
        ("nnclr", Box::new(NearestNce { temperature })),
    ]
}

#[test]
fn gradients_are_finite_differences_of_every_loss_with_keys() {
    let (raw, queue) = (keyed(3, 5), UnitRows::new(embeddings(4, 6, 5)[0].clone()));
    let h = 4e-3_f32;
    for (name, loss) in with_keys(0.4) {
        let (_, _, grads) = evaluate_sets(loss.as_ref(), &raw, queue.matrix().view());
        assert!(!grads.is_empty());
        for (set, grad) in grads {
            let place = raw.iter().position(|(other, _)| *other == set).unwrap();
            for index in ndarray::indices(grad.dim()) {
                let shifted = |by: f32| {
                    let mut moved = raw.clone();
                    moved[place].1[index] += by;
                    evaluate_sets(loss.as_ref(), &moved, queue.matrix().view()).0.loss
                };
                let numeric = (shifted(h) - shifted(-h)) / f64::from(2.0 * h);
                let ours = f64::from(grad[index]);
                assert!((numeric - ours).abs() < 2e-4, "{name} {set} {index:?}: {numeric} vs {ours}");
            }
        }
    }
}

#[test]
fn losses_with_keys_equal_the_f64_loop() {
    let (raw, tau) = (keyed(5, 6), 0.3);
    let queue = UnitRows::new(embeddings(6, 7, 6)[0].clone());
    let get = |name: SetName| unit(&raw.iter().find(|(other, _)| *other == name).unwrap().1);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let (q, k, j) = (get(SetName::View(0)), get(SetName::Key(1)), get(SetName::Jigsaw));
    let stored = unit(queue.matrix());
    let against_queue = |q: &[Vec<f64>]| -> f64 {
        let row = |i: usize| {
            let e = (dot(&q[i], &k[i]) / tau).exp();
            let sum: f64 = stored.iter().map(|n| (dot(&q[i], n) / tau).exp()).sum();
            -(e / (e + sum)).ln()
        };
        (0..4).map(row).sum::<f64>() / 4.0
    };
    let against_batch: f64 = (0..4)
        .map(|i| {
            let e = (dot(&q[i], &k[i]) / tau).exp();
            let sum: f64 = (0..4).filter(|&n| n != i).map(|n| (dot(&q[i], &k[n]) / tau).exp()).sum();
            -(e / (e + 500.0 / 3.0 * sum)).ln() / 4.0
        })
        .sum();
    let mut nearest_loss = 0.0;
    for (view, prediction) in [(0, 1), (1, 0)] {
        let (z, p) = (get(SetName::View(view)), get(SetName::Predictor(prediction)));
        for i in 0..4 {
            let best = stored.iter().max_by(|a, b| dot(&z[i], a).total_cmp(&dot(&z[i], b))).unwrap();
            let sum: f64 = p.iter().map(|p| (dot(best, p) / tau).exp()).sum();
            nearest_loss -= ((dot(best, &p[i]) / tau).exp() / sum).ln() / 8.0;
        }
    }
    let want = [against_queue(&q), against_batch, 0.5 * (against_queue(&q) + against_queue(&j)), nearest_loss];
    for ((name, loss), want) in with_keys(tau).into_iter().zip(want) {
        let (out, _, _) = evaluate_sets(loss.as_ref(), &raw, queue.matrix().view());
        assert!((out.loss - want).abs() < 1e-6, "{name}: {} vs {want}", out.loss);
    }
}

#[test]
fn losses_with_keys_are_finite_at_small_temperatures() {
    for temperature in [0.005, 0.01, 0.1] {
        for (name, loss) in with_keys(temperature) {
            let (raw, queue) = (keyed(7, 3), UnitRows::new(embeddings(8, 5, 3)[0].clone()));
            let alike: Vec<(SetName, Matrix)> = raw.iter().map(|(name, m)| (*name, Matrix::ones(m.dim()))).collect();
            for raw in [raw, alike] {
                let (out, _, grads) = evaluate_sets(loss.as_ref(), &raw, queue.matrix().view());
                assert!(out.loss.is_finite() && out.objective.unwrap().is_finite(), "{name} at {temperature}");
                assert!(grads.iter().flat_map(|(_, g)| g).all(|g| g.is_finite()), "{name} at {temperature}");
            }
        }
    }
}

/// A queue of the other images' keys makes MoCo SiMo with α = K.
#[test]
fn moco_with_the_batch_as_queue_is_simo_with_its_own_count() {
    let temperature = 0.2;
    let raw = keyed(9, 5);
    let queries = &[(SetName::View(0), 1.0)];
    let keys = UnitRows::new(raw[2].1.clone());
    let simo = KeyNce { temperature, negatives: Negatives::Batch, alpha: Some(3.0), queries };
    let (simo, _, _) = evaluate_sets(&simo, &raw, keys.matrix().view());
    // One query at a time, whose own key is not in the queue.
    let moco = KeyNce { temperature, negatives: Negatives::Queue, alpha: None, queries };
    let mut total = 0.0;
    for i in 0..4 {
        let others: Vec<usize> = (0..4).filter(|&j| j != i).collect();
        let queue = keys.matrix().select(ndarray::Axis(0), &others);
        // The pair twice: a batch has at least two samples.
        let pair: Vec<(SetName, Matrix)> =
            raw.iter().map(|(name, m)| (*name, m.select(ndarray::Axis(0), &[i, i]))).collect();
        total += evaluate_sets(&moco, &pair, queue.view()).0.loss / 4.0;
    }
    assert!((simo.loss - total).abs() < 1e-6, "{} {total}", simo.loss);
}

/// Multi-crop from its definition, crop by crop: anchors are all crops, positives the other large crops of the image.
fn multi_crop(name: &str, raw: &[Matrix], large: usize, tau: f64) -> f64 {
    let batch = raw[0].nrows();
    let z: Vec<Vec<Vec<f64>>> = raw.iter().map(unit).collect();
    let s = |a: (usize, usize), b: (usize, usize)| -> f64 {
        z[a.0][a.1].iter().zip(&z[b.0][b.1]).map(|(x, y)| x * y).sum()
    };
    let mut total = 0.0;
    for a in (0..raw.len()).flat_map(|view| (0..batch).map(move |i| (view, i))) {
        let positives: Vec<f64> = (0..large).filter(|&view| view != a.0).map(|view| s(a, (view, a.1))).collect();
        let others = (0..raw.len()).flat_map(|view| (0..batch).map(move |j| (view, j))).filter(|b| b.1 != a.1);
        let negatives: Vec<f64> = others.map(|b| s(a, b)).collect();
        let sum: f64 = negatives.iter().map(|s| (s / tau).exp()).sum();
        let mean = |f: &dyn Fn(f64) -> f64| positives.iter().map(|&s| f(s)).sum::<f64>() / positives.len() as f64;
        total += match name {
            "simclr" => mean(&|s| ((s / tau).exp() + sum).ln() - s / tau),
            "dcl" => mean(&|s| sum.ln() - s / tau),
            "flatnce" => mean(&|s| (1.0 + (sum.ln() - s / tau).exp()).ln()),
            // one softmax over positives and negatives
            "supcon" => {
                let all = sum + positives.iter().map(|s| (s / tau).exp()).sum::<f64>();
                mean(&|s| all.ln() - s / tau)
            }
            // first visit: u = ĝ, so that the weights are the softmax over the negatives
            "sogclr" => mean(&|s| -s) + negatives.iter().map(|s| (s / tau).exp() / sum * s).sum::<f64>(),
            _ => unreachable!(),
        };
    }
    total / (raw.len() * batch) as f64
}

#[test]
fn multi_crop_is_its_definition_and_two_crops_are_two_views() {
    let tau = 0.3;
    let crops = [embeddings(21, 4, 6), embeddings(22, 4, 6)].concat();
    let losses: [(&str, Box<dyn Loss>); 4] = [
        ("simclr", Box::new(NtXent { temperature: tau, alpha: None })),
        ("dcl", Box::new(Dcl { temperature: tau, sigma: None })),
        ("flatnce", Box::new(FlatNce { temperature: tau })),
        ("sogclr", Box::new(sogclr(tau, 0.7))),
    ];
    let supcon = SupCon { temperature: tau };
    for (views, large) in [(4, 2), (4, 3), (2, 2)] {
        let state = SampleState::new(4, &[]);
        let unique = [7, 3, 9, 1];
        let crops = &crops[..views];
        let (out, grads) = evaluate_labelled(&supcon, crops, &[0, 1, 2, 3], Some(&unique), &state, large);
        assert!((out.loss - multi_crop("supcon", crops, large, tau)).abs() < 1e-6, "supcon {views} {large}");
        assert_finite_difference(crops, &grads, |raw| multi_crop("supcon", raw, large, tau));
    }
    for (name, loss) in losses {
        let state = SampleState::new(4, loss.columns());
        let ids = [0, 1, 2, 3];
        for (views, large) in [(4, 2), (4, 3), (3, 2), (2, 2)] {
            let (out, _) = evaluate(loss.as_ref(), &crops[..views], &ids, &state, large);
            let want = multi_crop(name, &crops[..views], large, tau);
            assert!((out.loss - want).abs() < 1e-6, "{name} {views} crops, {large} large: {} vs {want}", out.loss);
        }
        // The two-view loss, written without any notion of crops.
        let all = Loop::new(&crops[..2]);
        let row = |a: usize| {
            let (positive, negatives) = (all.s(a, all.positive(a)), all.negatives(a));
            let sum: f64 = negatives.iter().map(|&b| (all.s(a, b) / tau).exp()).sum();
            match name {
                "simclr" => ((positive / tau).exp() + sum).ln() - positive / tau,
                "dcl" => sum.ln() - positive / tau,
                "flatnce" => (sum.ln() - positive / tau).exp().ln_1p(),
                _ => negatives.iter().map(|&b| (all.s(a, b) / tau).exp() / sum * all.s(a, b)).sum::<f64>() - positive,
            }
        };
        let two_views = (0..8).map(row).sum::<f64>() / 8.0;
        assert!((multi_crop(name, &crops[..2], 2, tau) - two_views).abs() < 1e-12, "{name}");
        // Gradients of all crops, where the value is differentiated (SogCLR's and FlatNCE's are stop-gradient forms).
        if matches!(name, "simclr" | "dcl") {
            let (_, grads) = evaluate(loss.as_ref(), &crops, &ids, &state, 2);
            assert_finite_difference(&crops, &grads, |raw| multi_crop(name, raw, 2, tau));
        }
    }
}
