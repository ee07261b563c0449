//! Every loss of views from its definition, in plain f64 loops, and the gradients of the stop-gradient forms from the finite
//! differences of their surrogates.

use crate::losses::evaluate_labelled;
use crate::losses_f64::{Loop, assert_finite_difference, embeddings, sogclr};
use sogclr::loss::{Dcl, Debiased, FlatNce, Gamma, Individual, Loss, NtXent, SogClr, SupCon, Variant};
use sogclr::math::Matrix;
use sogclr::state::{LOG_U, SampleState, TAU, TAU_GRAD};

const BATCH: usize = 4;
const IDS: [usize; BATCH] = [0, 1, 2, 3];
const LABELS: [u32; BATCH] = [0, 1, 0, 2];

/// Mean over the 2B anchors of `f(a)`.
fn mean(f: impl Fn(usize) -> f64) -> f64 {
    (0..2 * BATCH).map(f).sum::<f64>() / (2 * BATCH) as f64
}

#[test]
fn losses_without_memory_are_their_definitions() {
    let tau = 0.35;
    let raw = embeddings(31, BATCH, 6);
    let all = Loop::new(&raw);
    let e = |a: usize, b: usize| (all.s(a, b) / tau).exp();
    let positive = |a: usize| e(a, all.positive(a));
    let negatives = |a: usize| all.negatives(a).iter().map(|&b| e(a, b)).sum::<f64>();
    let count = (2 * (BATCH - 1)) as f64;

    let alpha = 50.0;
    let simo = mean(|a| -(positive(a) / (positive(a) + alpha / count * negatives(a))).ln());
    // w_i = 2 − B·softmax_i(s⁺/σ) over the samples of a view
    let sigma = 0.5;
    let weight = |a: usize| {
        let view = a / BATCH * BATCH;
        let near = |b: usize| (all.s(b, all.positive(b)) / sigma).exp();
        2.0 - BATCH as f64 * near(a) / (view..view + BATCH).map(near).sum::<f64>()
    };
    let dclw = mean(|a| negatives(a).ln() - weight(a) * all.s(a, all.positive(a)) / tau);
    let flatnce = mean(|a| (1.0 + negatives(a) / positive(a)).ln());
    let class = |a: usize| LABELS[a % BATCH];
    let supcon = mean(|a| {
        let others: Vec<usize> = (0..2 * BATCH).filter(|&b| b != a).collect();
        let sum: f64 = others.iter().map(|&b| e(a, b)).sum();
        let own: Vec<usize> = others.into_iter().filter(|&b| class(b) == class(a)).collect();
        own.iter().map(|&b| -(e(a, b) / sum).ln()).sum::<f64>() / own.len() as f64
    });
    let clamped = std::cell::Cell::new(0);
    let debiased = |prior: f64| {
        mean(|a| {
            let estimate = (negatives(a) - prior * count * positive(a)) / (1.0 - prior);
            let least = count * (-1.0 / tau).exp();
            clamped.set(clamped.get() + usize::from(estimate < least));
            -(positive(a) / (positive(a) + estimate.max(least))).ln()
        })
    };
    let (gentle, strong) = (debiased(0.02), debiased(0.6));
    assert!((1..16).contains(&clamped.get()), "both branches of N_g are met: {}", clamped.get());

    let temperature = tau;
    let losses: [(&str, Box<dyn Loss>, f64); 6] = [
        ("simo", Box::new(NtXent { temperature, alpha: Some(alpha) }), simo),
        ("dclw", Box::new(Dcl { temperature, sigma: Some(sigma) }), dclw),
        ("flatnce", Box::new(FlatNce { temperature }), flatnce),
        ("supcon", Box::new(SupCon { temperature }), supcon),
        ("debiased", Box::new(Debiased { temperature, prior: 0.02 }), gentle),
        ("debiased, clamped", Box::new(Debiased { temperature, prior: 0.6 }), strong),
    ];
    for (name, loss, want) in losses {
        let state = SampleState::new(BATCH, loss.columns());
        let (out, _) = evaluate_labelled(loss.as_ref(), &raw, &IDS, Some(&LABELS), &state, 2);
        assert!((out.loss - want).abs() < 2e-6, "{name}: {} vs {want}", out.loss);
    }
}

/// What SogCLR's definition gives for one batch.
struct Defined {
    /// w_ab of the surrogate Σ_a [−s⁺_a + Σ_b w_ab·s_ab]/(2B)
    weights: Vec<Vec<(usize, f64)>>,
    log_u: Vec<f64>,
    /// ∂F/∂τ_i without ρ
    tau_grad: Vec<f64>,
}

struct Case {
    name: &'static str,
    loss: SogClr,
    /// ln u before the batch; NaN is unseen.
    log_u: [f32; BATCH],
    /// τ of each sample.
    tau: [f64; BATCH],
}

impl Case {
    fn rows(&self, a: usize, is_positive: bool) -> Vec<usize> {
        let class = |row: usize| if self.loss.by_label { LABELS[row % BATCH] as usize } else { row % BATCH };
        (0..2 * BATCH).filter(|&b| b != a && (class(b) == class(a)) == is_positive).collect()
    }

    fn defined(&self, raw: &[Matrix]) -> Defined {
        let all = Loop::new(raw);
        let exp = |a: usize, b: usize| (all.s(a, b) / self.tau[a % BATCH]).exp();
        let g = |a: usize| {
            let negatives = self.rows(a, false);
            negatives.iter().map(|&b| exp(a, b)).sum::<f64>() / negatives.len() as f64
        };
        let mean_positive = |a: usize| {
            let own = self.rows(a, true);
            own.iter().map(|&b| all.s(a, b)).sum::<f64>() / own.len() as f64
        };
        let nobody_seen = self.log_u.iter().all(|u| u.is_nan());
        let mut out = Defined { weights: vec![Vec::new(); 2 * BATCH], log_u: Vec::new(), tau_grad: Vec::new() };
        for i in 0..BATCH {
            let views = [i, i + BATCH];
            let average = 0.5 * (g(views[0]) + g(views[1]));
            let old = (!self.log_u[i].is_nan()).then(|| f64::from(self.log_u[i]).exp());
            let gamma = match self.loss.gamma {
                Gamma::Constant { value } => value,
                Gamma::Adaptive { offset } => {
                    let logit = 0.5 * (mean_positive(views[0]) + mean_positive(views[1])) / self.tau[i];
                    1.0 / (1.0 + (-(old.unwrap_or(average).ln() - logit) - offset).exp())
                }
                Gamma::Cosine { .. } => unreachable!(),
            };
            let gamma = if self.loss.variant == Variant::Released && nobody_seen { 1.0 } else { gamma };
            let mix = |old: f64, new: f64| (1.0 - gamma) * old + gamma * new;
            let u: Vec<f64> = match self.loss.variant {
                Variant::Algorithm1 => vec![old.unwrap_or(average) + self.loss.epsilon; 2],
                Variant::Default => views.map(|a| old.map_or(g(a), |old| mix(old, g(a)))).to_vec(),
                Variant::Released | Variant::Tf => views.map(|a| mix(old.unwrap_or(0.0), g(a))).to_vec(),
            };
            let stored = match self.loss.variant {
                Variant::Algorithm1 => mix(old.unwrap_or(average), average),
                Variant::Tf => u[0] + u[1],
                _ => 0.5 * (u[0] + u[1]),
            };
            out.log_u.push(stored.ln());
            let mut tau_grad = 0.0;
            for (view, &a) in views.iter().enumerate() {
                let negatives = self.rows(a, false);
                let weight = |&b: &usize| (b, exp(a, b) / (negatives.len() as f64 * u[view]));
                out.weights[a] = negatives.iter().map(weight).collect();
                let pushed: f64 = out.weights[a].iter().map(|&(b, w)| w * all.s(a, b)).sum();
                tau_grad += 0.5 * (u[view].ln() - pushed / self.tau[i]);
            }
            out.tau_grad.push(tau_grad);
        }
        out
    }

    fn surrogate(&self, weights: &[Vec<(usize, f64)>], raw: &[Matrix]) -> f64 {
        let all = Loop::new(raw);
        mean(|a| {
            let own = self.rows(a, true);
            let pull = own.iter().map(|&b| all.s(a, b)).sum::<f64>() / own.len() as f64;
            weights[a].iter().map(|&(b, w)| w * all.s(a, b)).sum::<f64>() - pull
        })
    }
}

const INDIVIDUAL: Individual = Individual { rho: 0.3, rate: 0.02, beta: 0.6, clip: 3.0, range: [0.05, 0.7] };

fn cases() -> Vec<Case> {
    let mixed = [0.5, f32::NAN, 1.2, -0.4];
    let base = || sogclr(0.3, 0.7);
    let case = |name, loss, log_u| Case { name, loss, log_u, tau: [0.3; BATCH] };
    let individual = Case {
        name: "isogclr",
        loss: SogClr { individual: Some(INDIVIDUAL), ..base() },
        log_u: mixed,
        tau: [0.25, 0.3, 0.5, 0.31],
    };
    vec![
        case("default", base(), mixed),
        case("algorithm1", SogClr { variant: Variant::Algorithm1, epsilon: 0.2, ..base() }, mixed),
        case("released", SogClr { variant: Variant::Released, ..base() }, mixed),
        case("released, nobody seen", SogClr { variant: Variant::Released, ..base() }, [f32::NAN; BATCH]),
        case("tf", SogClr { variant: Variant::Tf, ..base() }, mixed),
        case("with labels", SogClr { by_label: true, ..base() }, mixed),
        case("adaptive γ", SogClr { gamma: Gamma::Adaptive { offset: 0.5 }, ..base() }, mixed),
        individual,
    ]
}

#[test]
fn every_form_of_sogclr_is_its_definition() {
    let raw = embeddings(41, BATCH, 5);
    for case in cases() {
        let name = case.name;
        let mut columns = vec![(LOG_U.to_owned(), case.log_u.to_vec())];
        if case.loss.individual.is_some() {
            // Sample 1 was never met: its τ is the loss's own.
            let taus = [0.25, f32::NAN, 0.5, 0.31];
            columns.push((TAU.to_owned(), taus.to_vec()));
            columns.push((TAU_GRAD.to_owned(), vec![0.4, f32::NAN, -0.2, 0.0]));
        }
        let state = SampleState::from_columns(BATCH, columns.into_iter().collect());
        let (out, grads) = evaluate_labelled(&case.loss, &raw, &IDS, Some(&LABELS), &state, 2);
        let defined = case.defined(&raw);
        let want = case.surrogate(&defined.weights, &raw);
        assert!((out.loss - want).abs() < 2e-6, "{name}: {} vs {want}", out.loss);
        let column = |wanted: &str| &out.update.columns.iter().find(|(name, _)| *name == wanted).unwrap().1;
        for (i, want) in defined.log_u.iter().enumerate() {
            let ours = f64::from(column(LOG_U)[i]);
            assert!((ours - want).abs() < 1e-5, "{name}: ln u of sample {i}: {ours} vs {want}");
        }
        assert_finite_difference(&raw, &grads, |raw| case.surrogate(&defined.weights, raw));
        if let Some(Individual { rho, rate, beta, clip, range }) = case.loss.individual {
            for i in 0..BATCH {
                let gradient = (defined.tau_grad[i] + rho).clamp(-clip, clip);
                let v = (1.0 - beta) * state.seen(TAU_GRAD, i).unwrap_or(0.0) + beta * gradient;
                let tau = (case.tau[i] - rate * v).clamp(range[0], range[1]);
                assert!((f64::from(column(TAU_GRAD)[i]) - v).abs() < 1e-5, "{name}: v of sample {i}");
                assert!((f64::from(column(TAU)[i]) - tau).abs() < 1e-6, "{name}: τ of sample {i}");
            }
        }
    }
}

/// ∂F/∂τ_i is the derivative of τ(ln g(τ) + ρ) where u = g(τ): a first visit.
#[test]
fn the_gradient_of_an_individual_temperature_is_a_finite_difference() {
    let raw = embeddings(42, BATCH, 5);
    let (tau, step) = (0.3, 1e-5);
    let all = Loop::new(&raw);
    let objective = |i: usize, tau: f64| {
        let of_view = |a: usize| tau * (all.g(a, tau).ln() + INDIVIDUAL.rho);
        0.5 * (of_view(i) + of_view(i + BATCH))
    };
    let wide = Individual { clip: 1e3, ..INDIVIDUAL };
    let loss = SogClr { individual: Some(wide), ..sogclr(tau, 1.0) };
    let state = SampleState::new(BATCH, loss.columns());
    let (out, _) = evaluate_labelled(&loss, &raw, &IDS, None, &state, 2);
    let averages = &out.update.columns.iter().find(|(name, _)| *name == TAU_GRAD).unwrap().1;
    for (i, average) in averages.iter().enumerate() {
        let want = (objective(i, tau + step) - objective(i, tau - step)) / (2.0 * step);
        assert!((f64::from(*average) / wide.beta - want).abs() < 1e-4, "sample {i}: {average} vs {want}");
    }
}

/// A batch may hold one class by chance: SupCon and SogCLR with labels then only pull, and u stays.
#[test]
fn a_batch_of_one_class_only_pulls() {
    let raw = embeddings(43, BATCH, 5);
    let all = Loop::new(&raw);
    let one = [7_u32; BATCH];
    let tau = 0.4;
    let others = |a: usize| (0..2 * BATCH).filter(move |&b| b != a);
    let pull = |a: usize| others(a).map(|b| all.s(a, b)).sum::<f64>() / (2 * BATCH - 1) as f64;
    let supcon = |raw: &[Matrix]| {
        let all = Loop::new(raw);
        mean(|a| {
            let sum: f64 = others(a).map(|b| (all.s(a, b) / tau).exp()).sum();
            sum.ln() - others(a).map(|b| all.s(a, b)).sum::<f64>() / (2 * BATCH - 1) as f64 / tau
        })
    };
    let state = SampleState::new(BATCH, &[]);
    let (out, grads) = evaluate_labelled(&SupCon { temperature: tau }, &raw, &IDS, Some(&one), &state, 2);
    assert!((out.loss - supcon(&raw)).abs() < 2e-6 && out.objective.unwrap().is_finite());
    assert_finite_difference(&raw, &grads, supcon);

    let loss = SogClr { by_label: true, ..sogclr(tau, 0.7) };
    let state = SampleState::from_columns(BATCH, [(LOG_U.to_owned(), vec![0.5, f32::NAN, 1.0, 2.0])].into());
    let (out, grads) = evaluate_labelled(&loss, &raw, &IDS, Some(&one), &state, 2);
    assert!((out.loss + mean(pull)).abs() < 2e-6 && out.objective.unwrap().is_finite(), "{} {}", out.loss, mean(pull));
    assert!(grads.iter().flatten().all(|g| g.is_finite()));
    let log_u = &out.update.columns[0].1;
    assert!(log_u[0] == 0.5 && log_u[1].is_nan() && log_u[2..] == [1.0, 2.0], "{log_u:?}");
}
