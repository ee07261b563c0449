//! Two-way SogCLR for image–text pairs: moving averages u^I of every image's normaliser over the texts and u^T of every
//! text's over the images. With cosine γ this is FastCLIP v1, with individual temperatures iSogCLR and FastCLIP v2, with
//! one learned temperature FastCLIP v3.
//!
//! loss = 1/(2B) Σ_i [ −2s_ii + Σ_j sg(exp(s_ij/τ)/(n·u^I_i))·s_ij + Σ_j sg(exp(s_ji/τ)/(n·u^T_i))·s_ji ], j ≠ i and n = B−1,
//! or all j and n = B with `include_positive`.

use super::pairs::{PairAnchor, Pairs, Side};
use super::sogclr::MAX_LOG_RATIO;
use super::{Gamma, Individual, Loss, LossError, LossInput, LossOutput, Variant};
use crate::math::{log_add_exp, log_mix};
use crate::state::{LOG_U, LOG_U_TEXT, StateUpdate, TAU, TAU_GRAD, TAU_GRAD_TEXT, TAU_TEXT};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The learned global temperature among [`LossOutput::parameter_grads`].
pub const GLOBAL_TAU: &str = "tau";

/// How τ is found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PairTemperature {
    /// It stays as it is.
    Fixed,
    /// Every image and every text learns its own.
    Individual(#[serde(deserialize_with = "OfPairs::deserialize")] Individual),
    /// One τ is learned for all: the objective gains ρτ.
    Global {
        /// ρ: the larger, the lower the temperature.
        rho: f64,
    },
}

/// Reads an [`Individual`] of which `kind` alone may be given: the rest is as for pairs.
#[derive(Deserialize)]
#[serde(remote = "Individual", default = "Individual::of_pairs", deny_unknown_fields)]
struct OfPairs {
    rho: f64,
    rate: f64,
    beta: f64,
    clip: f64,
    range: [f64; 2],
}

impl Individual {
    /// The defaults for image–text pairs.
    pub fn of_pairs() -> Self {
        Self { rho: 0.3, rate: 0.01, beta: 0.9, clip: 5.0, range: [0.05, 0.7] }
    }
}

/// Two-way SogCLR with moving averages u^I of every image and u^T of every text.
#[derive(Clone, Debug)]
pub struct TwoWay {
    /// τ, with individual temperatures that of an unseen image or text.
    pub temperature: f64,
    /// How τ is found.
    pub learned: PairTemperature,
    /// γ, the weight of the new estimate in u^I and u^T.
    pub gamma: Gamma,
    /// Which u weighs the gradient. An image and its text have one view each, so `Tf` has no sum to store: it is `Default`
    /// with u₀ = 0.
    pub variant: Variant,
    /// Sum over the matched pair as well, as the paper prints the objective.
    pub include_positive: bool,
}

/// What one side keeps of its anchors.
struct Half {
    tau: Vec<f64>,
    positive: Vec<f64>,
    /// ln ĝ
    log_g: Vec<f64>,
    /// Σ_j softmax_j·s_j over what ĝ sums
    pushed: Vec<f64>,
    /// ln u after this step
    log_u: Vec<f64>,
    /// ln of the u that weighs this step
    log_used: Vec<f64>,
}

impl Half {
    /// ln of u_i as it divides anchor i's push.
    fn log_divisor(&self, i: usize) -> f64 {
        // Deviation: a stale u far below ĝ (`algorithm1`, adaptive γ near 0) would overflow f32; its weights are capped.
        self.log_used[i].max(self.log_g[i] - MAX_LOG_RATIO)
    }

    /// ĝ/u, how much anchor i's push counts.
    fn weight(&self, i: usize) -> f64 {
        (self.log_g[i] - self.log_divisor(i)).exp()
    }

    /// ∂F/∂τ_i = ln u_i + ρ − ĝ/u·Σ_j softmax_j·s_j/τ_i
    fn tau_gradient(&self, i: usize, rho: f64) -> f64 {
        self.log_used[i] + rho - self.weight(i) * self.pushed[i] / self.tau[i]
    }
}

/// The state of one side: ln u, τ and the average of its gradient.
fn columns(side: Side) -> [&'static str; 3] {
    match side {
        Side::Image => [LOG_U, TAU, TAU_GRAD],
        Side::Text => [LOG_U_TEXT, TAU_TEXT, TAU_GRAD_TEXT],
    }
}

impl TwoWay {
    /// The recommended reading, with one fixed temperature and without the matched pair.
    pub fn new(temperature: f64, gamma: Gamma) -> Self {
        let (learned, variant) = (PairTemperature::Fixed, Variant::Default);
        Self { temperature, learned, gamma, variant, include_positive: false }
    }

    fn half(&self, pairs: &Pairs, side: Side, input: &LossInput) -> Half {
        let [log_u_name, tau_name, _] = columns(side);
        let own_tau = |&id: &usize| match self.learned {
            PairTemperature::Individual(_) => input.state.seen(tau_name, id).unwrap_or(self.temperature),
            _ => self.temperature,
        };
        let tau: Vec<f64> = input.ids.iter().map(own_tau).collect();
        let anchors = pairs.anchors(side, |i| tau[i]);
        let summed = |(a, tau): (&PairAnchor, &f64)| {
            if !self.include_positive {
                return (a.negatives.log_sum, a.negatives.mean);
            }
            let log_sum = log_add_exp(a.negatives.log_sum, a.positive / tau);
            let share = (a.positive / tau - log_sum).exp();
            (log_sum, share * a.positive + (1.0 - share) * a.negatives.mean)
        };
        let (log_sums, pushed): (Vec<f64>, Vec<f64>) = anchors.iter().zip(&tau).map(summed).unzip();
        let log_g: Vec<f64> = log_sums.iter().map(|log_sum| log_sum - self.log_count(pairs)).collect();
        let positive: Vec<f64> = anchors.iter().map(|a| a.positive).collect();
        let before: Vec<Option<f64>> = input.ids.iter().map(|&id| input.state.seen(log_u_name, id)).collect();
        let forgets_all = self.variant == Variant::Released && before.iter().all(Option::is_none);
        // u_i ← (1−γ)u_i + γĝ_i; an unseen sample's u is its ĝ
        let update = |(i, before): (usize, &Option<f64>)| {
            let (logit, log_g) = (positive[i] / tau[i], log_g[i]);
            let gamma = |log_u: f64| self.gamma.at(input.at.epoch, log_u - logit);
            match (self.variant, before) {
                (_, &Some(old)) => log_mix(old, log_g, gamma(old)),
                (Variant::Released | Variant::Tf, None) if !forgets_all => gamma(log_g).ln() + log_g, // u₀ = 0
                _ => log_g,
            }
        };
        let log_u: Vec<f64> = before.iter().enumerate().map(update).collect();
        let log_used = match self.variant {
            // Deviation: an unseen sample uses its own ĝ, as u₀ = 0 would make its weight infinite.
            Variant::Algorithm1 => before.iter().zip(&log_g).map(|(before, log_g)| before.unwrap_or(*log_g)).collect(),
            Variant::Default | Variant::Released | Variant::Tf => log_u.clone(),
        };
        Half { tau, positive, log_g, pushed, log_u, log_used }
    }

    /// ln n
    fn log_count(&self, pairs: &Pairs) -> f64 {
        ((pairs.len() - usize::from(!self.include_positive)) as f64).ln()
    }

    /// The new state of one side.
    fn update(&self, side: Side, half: &Half, input: &LossInput) -> Vec<(&'static str, Vec<f32>)> {
        let [log_u_name, tau_name, grad_name] = columns(side);
        let mut new = vec![(log_u_name, half.log_u.iter().map(|&v| v as f32).collect())];
        if let PairTemperature::Individual(individual) = &self.learned {
            let (mut taus, mut averages) = (Vec::new(), Vec::new());
            for (i, &id) in input.ids.iter().enumerate() {
                let old = input.state.seen(grad_name, id).unwrap_or(0.0);
                let (tau, average) = individual.moved(half.tau[i], old, half.tau_gradient(i, individual.rho));
                taus.push(tau as f32);
                averages.push(average as f32);
            }
            new.extend([(tau_name, taus), (grad_name, averages)]);
        }
        new
    }
}

impl Loss for TwoWay {
    fn columns(&self) -> &'static [&'static str] {
        match self.learned {
            PairTemperature::Individual(_) => &[LOG_U, TAU, TAU_GRAD, LOG_U_TEXT, TAU_TEXT, TAU_GRAD_TEXT],
            _ => &[LOG_U, LOG_U_TEXT],
        }
    }

    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let pairs = Pairs::new(input)?;
        let halves = Side::BOTH.map(|side| self.half(&pairs, side, input));
        let mean = 0.5 / pairs.len() as f64;
        let rho = match self.learned {
            PairTemperature::Fixed => 0.0,
            PairTemperature::Individual(Individual { rho, .. }) | PairTemperature::Global { rho } => rho,
        };
        let (mut loss, mut objective, mut tau_grad) = (0.0, 0.0, 0.0);
        for half in &halves {
            for i in 0..pairs.len() {
                loss += mean * (-half.positive[i] + half.weight(i) * half.pushed[i]);
                objective += mean * (-half.positive[i] + half.tau[i] * (half.log_u[i] + rho));
                tau_grad += mean * half.tau_gradient(i, rho);
            }
        }

        let log_count = self.log_count(&pairs);
        let inverse_tau =
            halves.each_ref().map(|half| half.tau.iter().map(|tau| (1.0 / tau) as f32).collect::<Vec<_>>());
        let offset = halves
            .each_ref()
            .map(|half| (0..pairs.len()).map(|i| -(half.log_divisor(i) + log_count) as f32).collect::<Vec<_>>());
        let ([image_tau, text_tau], [image_offset, text_offset]) = (&inverse_tau, &offset);
        let grads = pairs.softmax_gradient([image_tau, text_tau], [image_offset, text_offset], mean as f32, |i, s| {
            let pushed = |tau: &[f32], offset: &[f32]| (s * tau[i] + offset[i]).exp();
            let push = match self.include_positive {
                true => pushed(image_tau, image_offset) + pushed(text_tau, text_offset),
                false => 0.0,
            };
            mean as f32 * (push - 2.0)
        });
        let columns = Side::BOTH.iter().zip(&halves).flat_map(|(side, half)| self.update(*side, half, input)).collect();
        let is_global = matches!(self.learned, PairTemperature::Global { .. });
        Ok(LossOutput {
            loss,
            objective: Some(objective),
            grads: input.through_norms(grads)?,
            parameter_grads: if is_global { vec![(GLOBAL_TAU, tau_grad)] } else { Vec::new() },
            update: StateUpdate { ids: input.ids.to_vec(), columns },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{EmbeddingSets, SetName};
    use crate::math::Matrix;
    use crate::state::SampleState;
    use ndarray::array;

    const GAMMA: Gamma = Gamma::Constant { value: 0.25 };

    fn loss(temperature: f64) -> TwoWay {
        TwoWay::new(temperature, GAMMA)
    }

    /// Two pairs with s = [[0.6, 0.28], [0.8, 0.96]], images in rows, and u of sample 3 where it was seen.
    fn forward(loss: &TwoWay, u: Option<[f64; 2]>) -> LossOutput {
        let (images, texts) = (array![[2.0, 0.0], [0.0, 1.0]], array![[3.0, 4.0], [7.0, 24.0]]);
        let sets = EmbeddingSets::new(vec![(SetName::View(0), images), (SetName::Text, texts)]);
        let mut state = SampleState::new(4, loss.columns());
        if let Some([image, text]) = u {
            let columns = vec![(LOG_U, vec![image.ln() as f32]), (LOG_U_TEXT, vec![text.ln() as f32])];
            state.commit(StateUpdate { ids: vec![3], columns });
        }
        loss.forward(&LossInput::new(&sets, &[3, 1], &state)).unwrap()
    }

    fn column<'a>(out: &'a LossOutput, name: &str) -> &'a [f32] {
        &out.update.columns.iter().find(|(column, _)| *column == name).expect("the column").1
    }

    fn assert_close(ours: &[f32], want: [f64; 2]) {
        assert!(ours.iter().zip(want).all(|(o, w)| (f64::from(*o) - w).abs() < 1e-5), "{ours:?} {want:?}");
    }

    /// One negative each, so ln ĝ = s⁻/τ: 0.28 and 0.8 for the images, 0.8 and 0.28 for the texts.
    #[test]
    fn the_first_visit_sets_u_to_the_estimate_on_both_sides() {
        let out = forward(&loss(0.5), None);
        assert_eq!(out.update.ids, [3, 1]);
        assert_close(column(&out, LOG_U), [0.56, 1.6]);
        assert_close(column(&out, LOG_U_TEXT), [1.6, 0.56]);
        // ĝ/u = 1: the mean of s⁻ − s⁺
        assert!((out.loss - (0.28 + 0.8 - 0.6 - 0.96) / 2.0).abs() < 1e-6, "{}", out.loss);
        assert!((out.objective.unwrap() - out.loss).abs() < 1e-6, "−s⁺ + τ·ln u is the same here");
        assert!(out.parameter_grads.is_empty());
    }

    #[test]
    fn a_later_visit_mixes_and_weighs_each_side_by_its_own_u() {
        let out = forward(&loss(0.5), Some([2.0, 7.0]));
        let (image_g, text_g) = (0.56_f64.exp(), 1.6_f64.exp());
        let (image_u, text_u) = (0.75 * 2.0 + 0.25 * image_g, 0.75 * 7.0 + 0.25 * text_g);
        assert_close(column(&out, LOG_U), [image_u.ln(), 1.6]);
        assert_close(column(&out, LOG_U_TEXT), [text_u.ln(), 0.56]);
        let pushed = image_g / image_u * 0.28 + text_g / text_u * 0.8 + 0.8 + 0.28;
        assert!((out.loss - (pushed - 2.0 * (0.6 + 0.96)) / 4.0).abs() < 1e-6, "{}", out.loss);
    }

    #[test]
    fn the_matched_pair_joins_the_sum_if_asked() {
        let out = forward(&TwoWay { include_positive: true, ..loss(0.5) }, None);
        let log_g = |m: f64, n: f64| (((m / 0.5).exp() + (n / 0.5).exp()) / 2.0).ln();
        assert_close(column(&out, LOG_U), [log_g(0.6, 0.28), log_g(0.8, 0.96)]);
        assert_close(column(&out, LOG_U_TEXT), [log_g(0.6, 0.8), log_g(0.28, 0.96)]);
    }

    /// Three pairs, u and τ different for every image and text.
    #[test]
    fn images_and_texts_may_change_places() {
        let (a, b) = (array![[2.0, 0.3], [0.0, 1.0], [-1.0, 0.5]], array![[3.0, 4.0], [7.0, 24.0], [-2.0, -1.0]]);
        let individual = Individual { clip: 9.0, ..Individual::of_pairs() };
        let loss = TwoWay { learned: PairTemperature::Individual(individual), ..loss(0.4) };
        let forward = |images: &Matrix, texts: &Matrix, names: [[&'static str; 3]; 2]| {
            let sets = EmbeddingSets::new(vec![(SetName::View(0), images.clone()), (SetName::Text, texts.clone())]);
            let mut state = SampleState::new(3, loss.columns());
            let values = [
                [vec![0.5, 1.0, 2.0], vec![0.3, 0.4, 0.5], vec![0.1, 0.2, 0.3]],
                [vec![1.5, 0.1, 0.2], vec![0.6, 0.2, 0.1], vec![-0.1, 0.5, -0.3]],
            ];
            let columns = names.into_iter().flatten().zip(values.into_iter().flatten()).collect();
            state.commit(StateUpdate { ids: vec![0, 1, 2], columns });
            loss.forward(&LossInput::new(&sets, &[0, 1, 2], &state)).unwrap()
        };
        let (image, text) = (columns(Side::Image), columns(Side::Text));
        let (straight, swapped) = (forward(&a, &b, [image, text]), forward(&b, &a, [text, image]));
        assert!((straight.loss - swapped.loss).abs() < 1e-6, "{} {}", straight.loss, swapped.loss);
        for (ours, other) in [(0, 1), (1, 0)] {
            let apart = &straight.grads[ours].1 - &swapped.grads[other].1;
            assert!(apart.iter().all(|d| d.abs() < 1e-6), "{apart}");
        }
        for (ours, other) in image.into_iter().chain(text).zip(text.into_iter().chain(image)) {
            let pairs = column(&straight, ours).iter().zip(column(&swapped, other));
            assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-5), "{ours}");
        }
        assert_ne!(column(&straight, TAU), column(&straight, TAU_TEXT));
    }

    /// Unseen samples have u = ĝ(τ), so the objective's slope over τ is the whole gradient.
    #[test]
    fn one_temperature_for_all_has_the_slope_of_the_objective() {
        let learned = PairTemperature::Global { rho: 0.3 };
        let out = |tau: f64| forward(&TwoWay { learned, include_positive: true, ..loss(tau) }, None);
        let slope = (out(0.501).objective.unwrap() - out(0.499).objective.unwrap()) / 0.002;
        let [(name, grad)] = out(0.5).parameter_grads[..] else { panic!("one parameter") };
        assert_eq!(name, GLOBAL_TAU);
        assert!((grad - slope).abs() < 1e-3, "{grad} {slope}");
    }

    #[test]
    fn individual_temperatures_of_pairs_have_defaults() {
        let read = |text: &str| toml::from_str::<PairTemperature>(text);
        assert_eq!(read("kind = 'individual'"), Ok(PairTemperature::Individual(Individual::of_pairs())));
        let want = Individual { rho: 6.5, ..Individual::of_pairs() };
        assert_eq!(read("kind = 'individual'\nrho = 6.5"), Ok(PairTemperature::Individual(want)));
        assert!(read("kind = 'individual'\nspeed = 1.0").unwrap_err().message().contains("speed"));
        assert!(read("kind = 'global'").unwrap_err().message().contains("rho"));
    }
}
