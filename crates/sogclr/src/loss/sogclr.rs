//! SogCLR, Algorithm 1: the dynamic contrastive loss with one moving average u_i for each training sample.
//!
//! Everything is kept as logarithms: ln u, ln ĝ, ε₀ inside a log-sum-exp. The paper, its pseudo-code and the
//! released programs differ in which u weighs the gradient; [`Variant`] names the four readings.

use super::views::Views;
use super::{Loss, LossError, LossInput, LossOutput};
use crate::check::{Problem, require};
use crate::math::{log_add_exp, log_mix, log_sum_exp};
use crate::state::{LOG_U, StateUpdate, TAU, TAU_GRAD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Value;

/// Which reading of Algorithm 1 weighs the gradient and fills u.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Fresh u_t for each view; a sample's first visit sets u = ĝ. Recommended.
    #[default]
    Default,
    /// u_{t−1}, one scalar for both views, as printed in Algorithm 1.
    Algorithm1,
    /// The released PyTorch program: γ is 1 only while the whole batch is unseen.
    Released,
    /// The released TensorFlow program: stores the sum over the views.
    Tf,
}

/// γ, the weight of the new estimate in eq. (9).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Gamma {
    /// The same γ throughout; 1 is no memory at all.
    Constant {
        /// γ, above 0 and at most 1.
        value: f64,
    },
    /// γ_e = min + (1 − min)·½(1 + cos(πe/epochs)), then `min`: the first epoch has no memory.
    Cosine {
        /// γ at the end of the fall; 0.2 unless given.
        min: f64,
        /// Length of the fall; half of the run unless given.
        epochs: usize,
    },
    /// SCENT's γ_i = 1/(1 + exp(−ln v_i − c)), v_i = u_i·exp(−s⁺_i/τ): samples whose negatives are close beside their
    /// positive forget faster.
    Adaptive {
        /// c; larger forgets faster.
        offset: f64,
    },
}

impl Gamma {
    /// Completes what a user may write in short: a number is a constant, and cosine γ falls to 0.2 over half of the run, as
    /// in FastCLIP.
    pub fn expand(given: &mut Value, epochs: usize) {
        if let Some(value) = given.as_float().or(given.as_integer().map(|v| v as f64)) {
            *given = Value::try_from(Self::Constant { value }).expect("plain data");
        }
        if let Value::Table(table) = given
            && table.get("kind").and_then(Value::as_str) == Some("cosine")
        {
            table.entry("min").or_insert(Value::Float(0.2));
            table.entry("epochs").or_insert(Value::Integer((epochs / 2).max(1) as i64));
        }
    }

    /// The lowest γ of the schedule, if it makes sense.
    pub fn check(&self) -> Result<f64, Problem> {
        let lowest = match *self {
            Self::Constant { value } => value,
            Self::Cosine { min, .. } => min,
            Self::Adaptive { offset } => {
                require(offset.is_finite(), "method.gamma.offset", || {
                    format!("is {offset}; it must be finite (try 10)")
                })?;
                return Ok(f64::MIN_POSITIVE);
            }
        };
        require(lowest > 0.0 && lowest <= 1.0, "method.gamma", || {
            format!("is {lowest}; it must be above 0 and at most 1 (try 0.8)")
        })?;
        let falls = !matches!(self, Self::Cosine { epochs: 0, .. });
        require(falls, "method.gamma.epochs", || "is 0; cosine γ falls over at least 1 epoch".into())?;
        Ok(lowest)
    }

    /// γ in `epoch` for a sample whose average so far, relative to its positive, is ln v = ln u − s⁺/τ.
    pub fn at(&self, epoch: usize, log_v: f64) -> f64 {
        match *self {
            Gamma::Adaptive { offset } => 1.0 / (1.0 + (-log_v - offset).exp()),
            Gamma::Constant { value } => value,
            Gamma::Cosine { min, epochs } if epoch < epochs => {
                let progress = epoch as f64 / epochs as f64;
                min + (1.0 - min) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
            }
            Gamma::Cosine { min, .. } => min,
        }
    }
}

/// The SogCLR loss; see the module text.
#[derive(Clone, Debug)]
pub struct SogClr {
    /// τ, with individual temperatures that of an unseen sample.
    pub temperature: f64,
    /// γ of eq. (9).
    pub gamma: Gamma,
    /// Which reading of Algorithm 1.
    pub variant: Variant,
    /// ε₀ = ε′/|S_i| added to u in the weight (below eq. 10); 0 leaves it out.
    pub epsilon: f64,
    /// Multiplies the push from the negatives; 1 is eq. (10), 1/κ what a divisor κ times too large does.
    pub repulsion: f64,
    /// Positives are all views of the anchor's label, negatives those of other labels.
    pub by_label: bool,
    /// iSogCLR: every sample learns a temperature of its own, from `temperature`.
    pub individual: Option<Individual>,
}

/// How individual temperatures move: τ_i −= η·v_i with v_i = (1−β)v_i + β·clip(∂F/∂τ_i).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Individual {
    /// ρ: the larger, the lower the temperatures.
    pub rho: f64,
    /// η, the step size.
    pub rate: f64,
    /// β, the weight of the new gradient.
    pub beta: f64,
    /// Largest gradient.
    pub clip: f64,
    /// Lowest and highest temperature.
    pub range: [f64; 2],
}

/// Largest ln(ĝ/U) that weighs a gradient; e⁸⁰ leaves f32 room for the sums.
pub(super) const MAX_LOG_RATIO: f64 = 80.0;

/// What the first pass keeps of one anchor.
struct Anchor {
    /// τ of its sample
    tau: f64,
    /// ln |B_a|
    log_count: f64,
    /// s⁺
    positive: f64,
    /// ln ĝ = ln 1/|B_a| Σ_{b∈B_a} exp(s_ab/τ)   eq. (2)
    log_g: f64,
    /// Σ_b softmax_b(s_ab/τ)·s_ab, the similarity the anchor is pushed away from
    pushed: f64,
}

/// ln U_a for each anchor (what divides its gradient) and the new ln u_i for each sample.
struct Normalisers {
    anchors: Vec<f64>,
    samples: Vec<f64>,
}

impl SogClr {
    /// The recommended reading, with one temperature for all and without labels.
    pub fn new(temperature: f64, gamma: Gamma) -> Self {
        let variant = Variant::Default;
        Self { temperature, gamma, variant, epsilon: 0.0, repulsion: 1.0, by_label: false, individual: None }
    }

    /// τ_i of each sample of the batch.
    fn temperatures(&self, input: &LossInput) -> Vec<f64> {
        let own = |&id: &usize| match self.individual {
            Some(_) => input.state.seen(TAU, id).unwrap_or(self.temperature),
            None => self.temperature,
        };
        input.ids.iter().map(own).collect()
    }

    fn anchors(&self, views: &Views, temperatures: &[f64]) -> Vec<Anchor> {
        let tau = |a: usize| temperatures[views.sample(a)];
        views.map_anchors(tau, |a, s, negatives| {
            let log_count = (views.negatives(a) as f64).ln();
            // A batch of one class has no negatives: ĝ = 0 pushes nothing.
            let (log_g, pushed) = match views.negatives(a) {
                0 => (f64::NEG_INFINITY, 0.0),
                _ => (negatives.log_sum - log_count, negatives.mean),
            };
            Anchor { tau: tau(a), log_count, positive: views.positive_similarity(a, s), log_g, pushed }
        })
    }

    /// The moving average, in log space and sample by sample.   eq. (9)
    fn normalisers(&self, views: &Views, anchors: &[Anchor], input: &LossInput) -> Normalisers {
        let log_g = |a: usize| anchors[a].log_g;
        let log_views = (views.views as f64).ln();
        let previous: Vec<Option<f64>> = input.ids.iter().map(|&id| input.state.seen(LOG_U, id)).collect();
        let forgets_all = self.variant == Variant::Released && previous.iter().all(Option::is_none);
        let mut out = Normalisers { anchors: vec![0.0; anchors.len()], samples: Vec::with_capacity(views.samples) };
        for (i, previous) in previous.into_iter().enumerate() {
            let rows = views.rows_of(i);
            if views.negatives(i) == 0 {
                // Nothing was estimated: u stays, seen or not.
                out.samples.push(previous.unwrap_or(f64::NAN));
                continue;
            }
            // ln ½(ĝ_a + ĝ_a′)
            let log_g_sample = log_sum_exp(rows.clone().map(log_g)) - log_views;
            let logit = |a: usize| anchors[a].positive / anchors[a].tau;
            let log_v = previous.unwrap_or(log_g_sample) - rows.clone().map(logit).sum::<f64>() / views.views as f64;
            let gamma = if forgets_all { 1.0 } else { self.gamma.at(input.at.epoch, log_v) };
            let log_u = match self.variant {
                Variant::Algorithm1 => {
                    // Deviation: u₀ = 0 would make the first weight infinite; an unseen sample uses its own ĝ.
                    let before = previous.unwrap_or(log_g_sample);
                    rows.for_each(|a| out.anchors[a] = before);
                    log_mix(before, log_g_sample, gamma)
                }
                Variant::Default | Variant::Released | Variant::Tf => {
                    let unseen = |a: usize| match self.variant {
                        Variant::Default => log_g(a),
                        _ => gamma.ln() + log_g(a), // u₀ = 0
                    };
                    for a in rows.clone() {
                        out.anchors[a] = previous.map_or_else(|| unseen(a), |u| log_mix(u, log_g(a), gamma));
                    }
                    let log_sum = log_sum_exp(rows.map(|a| out.anchors[a]));
                    if self.variant == Variant::Tf { log_sum } else { log_sum - log_views }
                }
            };
            out.samples.push(log_u);
        }
        if self.epsilon > 0.0 {
            let log_epsilon = self.epsilon.ln();
            out.anchors.iter_mut().for_each(|log_u| *log_u = log_add_exp(*log_u, log_epsilon));
        }
        let log_repulsion = self.repulsion.ln();
        out.anchors.iter_mut().for_each(|log_u| *log_u -= log_repulsion);
        out
    }
}

impl Individual {
    /// Refuses what cannot work from `temperature` on; `table` is where the settings stand.
    pub fn check(&self, table: &str, temperature: f64) -> Result<(), Problem> {
        let Individual { rho, rate, beta, clip, range: [low, high] } = *self;
        let own = |key: &str| format!("{table}.{key}");
        let rises = (0.005..=10.0).contains(&low) && (low..=10.0).contains(&high);
        require(rises, &own("range"), || format!("is {low}–{high}; it must rise within 0.005–10"))?;
        require((low..=high).contains(&temperature), "method.temperature", || {
            format!("is {temperature}; it must lie in the range {low}–{high}")
        })?;
        require(beta > 0.0 && beta <= 1.0, &own("beta"), || format!("is {beta}; it must be above 0 and at most 1"))?;
        let are_finite = rate >= 0.0 && clip >= 0.0 && rho.is_finite() && rate.is_finite();
        require(are_finite, &own("rate"), || {
            format!("is {rate} with clip {clip} and rho {rho}; use finite numbers from 0")
        })
    }

    /// The new τ_i and v_i from ∂F/∂τ_i.
    pub(super) fn moved(&self, tau: f64, average: f64, gradient: f64) -> (f64, f64) {
        let average = (1.0 - self.beta) * average + self.beta * gradient.clamp(-self.clip, self.clip);
        ((tau - self.rate * average).clamp(self.range[0], self.range[1]), average)
    }

    /// New temperatures and averaged gradients of the batch's samples:
    /// ∂F/∂τ_i = ln u_i + ρ − Σ_b p_ib·s_ib/τ_i, p_ib = exp(s_ib/τ_i)/(|B_i|·u_i), the mean over the views.
    fn step(
        &self,
        views: &Views,
        anchors: &[Anchor],
        normalisers: &Normalisers,
        temperatures: &[f64],
        input: &LossInput,
    ) -> [(&'static str, Vec<f32>); 2] {
        let (mut taus, mut grads) = (Vec::new(), Vec::new());
        for (i, (&id, &tau)) in input.ids.iter().zip(temperatures).enumerate() {
            let of_view = |a: usize| {
                let (anchor, log_u) = (&anchors[a], normalisers.anchors[a]);
                log_u + self.rho - (anchor.log_g - log_u).exp() * anchor.pushed / tau
            };
            let gradient = views.rows_of(i).map(of_view).sum::<f64>() / views.views as f64;
            let (tau, average) = self.moved(tau, input.state.seen(TAU_GRAD, id).unwrap_or(0.0), gradient);
            taus.push(tau as f32);
            grads.push(average as f32);
        }
        [(TAU, taus), (TAU_GRAD, grads)]
    }
}

impl Loss for SogClr {
    fn columns(&self) -> &'static [&'static str] {
        if self.individual.is_some() { &[LOG_U, TAU, TAU_GRAD] } else { &[LOG_U] }
    }

    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let views = if self.by_label { Views::by_label(input)? } else { Views::new(input)? };
        let temperatures = self.temperatures(input);
        let anchors = self.anchors(&views, &temperatures);
        let normalisers = self.normalisers(&views, &anchors, input);
        let mean = 1.0 / views.anchors() as f64;

        // loss = 1/(2B) Σ_a [ −s⁺_a + Σ_{b∈B_a} sg(exp(s_ab/τ)/(|B_a|·U_a))·s_ab ]
        let loss: f64 = anchors
            .iter()
            .zip(&normalisers.anchors)
            .map(|(a, log_u)| -a.positive + (a.log_g - log_u).exp() * a.pushed)
            .sum();
        // mean_i(−s⁺_i + τ_i·ln u_i), and τ_i·ρ for temperatures that are learned
        let rho = self.individual.map_or(0.0, |individual| individual.rho);
        let objective: f64 = normalisers
            .samples
            .iter()
            .enumerate()
            .map(|(i, log_u)| {
                let positive: f64 = views.rows_of(i).map(|a| anchors[a].positive).sum();
                let push = if log_u.is_nan() { 0.0 } else { temperatures[i] * (log_u + rho) };
                push - positive / views.views as f64
            })
            .sum();

        // c_ab = 1/(2B)·[ −∂s⁺_a/∂s_ab + exp(s_ab/τ)/(|B_a|·U_a) ]   eq. (10)
        // Deviation: a stale u far below ĝ (`algorithm1` at a tiny τ) would overflow f32; its weights are capped.
        let log_weight: Vec<f32> = normalisers
            .anchors
            .iter()
            .zip(&anchors)
            .map(|(log_u, a)| ((a.log_g - log_u).min(MAX_LOG_RATIO) - a.log_g - a.log_count) as f32)
            .collect();
        let inverse_tau: Vec<f32> = anchors.iter().map(|a| (1.0 / a.tau) as f32).collect();
        let grads = views.softmax_gradient(&inverse_tau, &log_weight, mean as f32, |a, b, _| {
            -mean as f32 * (views.positive_weight(a, b) + views.positive_weight(b, a))
        });

        let log_u = normalisers.samples.iter().map(|&v| v as f32).collect();
        let mut columns = vec![(LOG_U, log_u)];
        if let Some(individual) = &self.individual {
            columns.extend(individual.step(&views, &anchors, &normalisers, &temperatures, input));
        }
        Ok(LossOutput {
            loss: loss * mean,
            objective: Some(objective / views.samples as f64),
            grads: input.through_norms(grads)?,
            parameter_grads: Vec::new(),
            update: StateUpdate { ids: input.ids.to_vec(), columns },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{Dcl, EmbeddingSets, Progress, SetName};
    use crate::state::SampleState;
    use ndarray::array;

    const TEMPERATURE: f64 = 0.5;
    const IDS: [usize; 2] = [4, 2];

    fn sets() -> EmbeddingSets {
        let (first, second) = (array![[2.0, 0.0], [0.0, 1.0]], array![[3.0, 4.0], [7.0, 24.0]]);
        EmbeddingSets::new(vec![(SetName::View(0), first), (SetName::View(1), second)])
    }

    /// (s⁺, ĝ, Σ softmax·s) of each anchor from its s⁺ and two s⁻: samples 0 and 1 of view 0, then of view 1.
    fn by_hand() -> [(f64, f64, f64); 4] {
        let anchors = [(0.6, 0.0, 0.28), (0.96, 0.0, 0.8), (0.6, 0.8, 0.936), (0.96, 0.28, 0.936)];
        anchors.map(|(positive, m, n): (f64, f64, f64)| {
            let (e_m, e_n) = ((m / TEMPERATURE).exp(), (n / TEMPERATURE).exp());
            (positive, (e_m + e_n) / 2.0, (e_m * m + e_n * n) / (e_m + e_n))
        })
    }

    fn loss(variant: Variant, gamma: f64) -> SogClr {
        let gamma = Gamma::Constant { value: gamma };
        SogClr { variant, ..SogClr::new(TEMPERATURE, gamma) }
    }

    /// `u` of the batch's two samples, where they were seen.
    fn forward(loss: &SogClr, u: [Option<f64>; 2]) -> LossOutput {
        let (sets, mut state) = (sets(), SampleState::new(5, loss.columns()));
        let log_u = u.map(|u| u.map_or(f32::NAN, |u| u.ln() as f32)).to_vec();
        state.commit(StateUpdate { ids: IDS.to_vec(), columns: vec![(LOG_U, log_u)] });
        loss.forward(&LossInput::new(&sets, &IDS, &state)).unwrap()
    }

    /// The new u of the two samples, and the loss, are those that hand work gave.
    fn assert_out(out: &LossOutput, u: [f64; 2], divisors: [f64; 4]) {
        let (name, log_u) = &out.update.columns[0];
        assert_eq!((*name, &out.update.ids[..]), (LOG_U, &IDS[..]));
        for (ours, want) in log_u.iter().zip(u) {
            assert!((f64::from(*ours) - want.ln()).abs() < 1e-5, "{log_u:?} {u:?}");
        }
        let each = by_hand().into_iter().zip(divisors).map(|((positive, g, pushed), u)| -positive + g / u * pushed);
        let want = each.sum::<f64>() / 4.0;
        assert!((out.loss - want).abs() < 1e-5, "{} {want}", out.loss);
    }

    #[test]
    fn the_first_visit_sets_u_to_the_estimate() {
        let [a, b, a2, b2] = by_hand().map(|(_, g, _)| g);
        let u = [(a + a2) / 2.0, (b + b2) / 2.0];
        let out = forward(&loss(Variant::Default, 0.3), [None, None]);
        assert_out(&out, u, [a, b, a2, b2]);
        // −s⁺ + τ ln u with s⁺ = 0.6 and 0.96
        let want = (-0.6 - 0.96 + TEMPERATURE * (u[0].ln() + u[1].ln())) / 2.0;
        assert!((out.objective.unwrap() - want).abs() < 1e-5, "{:?} {want}", out.objective);
    }

    #[test]
    fn a_later_visit_mixes_the_estimate_into_u_for_each_view() {
        let [a, b, a2, b2] = by_hand().map(|(_, g, _)| g);
        let mixed = [0.7 * 2.0 + 0.3 * a, b, 0.7 * 2.0 + 0.3 * a2, b2];
        let u = [(mixed[0] + mixed[2]) / 2.0, (b + b2) / 2.0];
        assert_out(&forward(&loss(Variant::Default, 0.3), [Some(2.0), None]), u, mixed);
    }

    #[test]
    fn algorithm1_weighs_with_the_u_before() {
        let [a, b, a2, b2] = by_hand().map(|(_, g, _)| g);
        let of_b = (b + b2) / 2.0;
        let out = forward(&loss(Variant::Algorithm1, 0.3), [Some(2.0), None]);
        assert_out(&out, [0.7 * 2.0 + 0.3 * (a + a2) / 2.0, of_b], [2.0, of_b, 2.0, of_b]);
    }

    /// u₀ = 0: an unseen sample's u is γ·ĝ, in the PyTorch program unless the whole batch is unseen. TensorFlow's keeps the sum
    /// over the views.
    #[test]
    fn the_released_programs_start_from_zero() {
        let [a, b, a2, b2] = by_hand().map(|(_, g, _)| g);
        let all_new = forward(&loss(Variant::Released, 0.3), [None, None]);
        assert_out(&all_new, [(a + a2) / 2.0, (b + b2) / 2.0], [a, b, a2, b2]);
        let one_new = forward(&loss(Variant::Released, 0.3), [None, Some(2.0)]);
        let mixed = [0.3 * a, 0.7 * 2.0 + 0.3 * b, 0.3 * a2, 0.7 * 2.0 + 0.3 * b2];
        assert_out(&one_new, [(mixed[0] + mixed[2]) / 2.0, (mixed[1] + mixed[3]) / 2.0], mixed);
        let tensorflow = forward(&loss(Variant::Tf, 0.3), [None, Some(2.0)]);
        assert_out(&tensorflow, [mixed[0] + mixed[2], mixed[1] + mixed[3]], mixed);
    }

    #[test]
    fn without_memory_it_is_dcl_times_the_temperature() {
        let (sets, state) = (sets(), SampleState::new(5, &[]));
        let dcl = Dcl { temperature: TEMPERATURE, sigma: None }.forward(&LossInput::new(&sets, &IDS, &state)).unwrap();
        for u in [[None, None], [Some(9.0), Some(0.1)]] {
            let ours = forward(&loss(Variant::Default, 1.0), u);
            for ((_, ours), (_, dcl)) in ours.grads.iter().zip(&dcl.grads) {
                assert!((ours - dcl * TEMPERATURE as f32).iter().all(|d| d.abs() < 1e-6), "{ours} {dcl}");
            }
        }
    }

    #[test]
    fn epsilon_joins_u_in_the_weight_and_not_in_memory() {
        let [a, b, a2, b2] = by_hand().map(|(_, g, _)| g);
        let out = forward(&SogClr { epsilon: 0.4, ..loss(Variant::Default, 0.3) }, [None, None]);
        assert_out(&out, [(a + a2) / 2.0, (b + b2) / 2.0], [a + 0.4, b + 0.4, a2 + 0.4, b2 + 0.4]);
    }

    #[test]
    fn a_batch_of_one_label_leaves_u_as_it_was() {
        let (sets, mut state) = (sets(), SampleState::new(5, &[LOG_U]));
        state.commit(StateUpdate { ids: vec![2], columns: vec![(LOG_U, vec![0.75])] });
        let input = LossInput { labels: Some(&[6, 6]), ..LossInput::new(&sets, &IDS, &state) };
        let out = SogClr { by_label: true, ..loss(Variant::Default, 0.3) }.forward(&input).unwrap();
        let log_u = &out.update.columns[0].1;
        assert!(log_u[0].is_nan() && log_u[1] == 0.75, "{log_u:?}");
        // Nothing is pushed: −s⁺, the mean of all six similarities, 0.6 + 0 + 0.28 + 0.8 + 0.936 + 0.96.
        assert!((out.loss + 3.576 / 6.0).abs() < 1e-6, "{}", out.loss);
        assert!(out.grads.iter().all(|(_, grad)| grad.iter().all(|g| g.is_finite())));
    }

    #[test]
    fn gamma_may_be_written_in_short() {
        let expand = |given: &str, epochs| {
            let mut table: toml::Table = given.parse().unwrap();
            Gamma::expand(&mut table["gamma"], epochs);
            table["gamma"].clone().try_into::<Gamma>().unwrap()
        };
        assert_eq!(expand("gamma = 0.9", 10), Gamma::Constant { value: 0.9 });
        assert_eq!(expand("gamma = 1", 10), Gamma::Constant { value: 1.0 });
        assert_eq!(expand("gamma.kind = 'cosine'", 10), Gamma::Cosine { min: 0.2, epochs: 5 });
        assert_eq!(expand("gamma.kind = 'cosine'", 1), Gamma::Cosine { min: 0.2, epochs: 1 });
        let given = "gamma = { kind = 'cosine', min = 0.6, epochs = 3 }";
        assert_eq!(expand(given, 10), Gamma::Cosine { min: 0.6, epochs: 3 });
        assert_eq!(expand("gamma = { kind = 'adaptive', offset = 2.5 }", 10), Gamma::Adaptive { offset: 2.5 });
    }

    #[test]
    fn cosine_gamma_falls_from_one_to_its_end_and_stays() {
        let gamma = Gamma::Cosine { min: 0.2, epochs: 4 };
        // 0.2 + 0.4·(1 + cos(π/4)) after one epoch of four
        let want = [1.0, 0.6 + 0.4 * 0.5_f64.sqrt(), 0.6, 0.6 - 0.4 * 0.5_f64.sqrt(), 0.2, 0.2];
        for (epoch, want) in want.into_iter().enumerate() {
            assert!((gamma.at(epoch, 7.0) - want).abs() < 1e-12, "{epoch}: {} {want}", gamma.at(epoch, 7.0));
        }
        // σ(ln v + c)
        let adaptive = Gamma::Adaptive { offset: 2.0 };
        assert!((adaptive.at(9, -2.0) - 0.5).abs() < 1e-12);
        assert!((adaptive.at(9, 3_f64.ln() - 2.0) - 0.75).abs() < 1e-12);
    }

    #[test]
    fn the_epoch_decides_gamma() {
        let (sets, mut state) = (sets(), SampleState::new(5, &[LOG_U]));
        state.commit(StateUpdate { ids: IDS.to_vec(), columns: vec![(LOG_U, vec![0.0, 0.0])] });
        let loss = SogClr { gamma: Gamma::Cosine { min: 0.2, epochs: 4 }, ..loss(Variant::Default, 0.3) };
        let at = Progress { epoch: 2, ..Progress::default() };
        let out = loss.forward(&LossInput { at, ..LossInput::new(&sets, &IDS, &state) }).unwrap();
        let [a, _, a2, _] = by_hand().map(|(_, g, _)| g);
        // γ = 0.6 in epoch 2: 0.4·1 + 0.6·ĝ
        let want = (0.4 + 0.6 * (a + a2) / 2.0).ln();
        assert!((f64::from(out.update.columns[0].1[0]) - want).abs() < 1e-5);
    }

    #[test]
    fn impossible_gammas_are_refused_by_their_key() {
        let key = |gamma: Gamma| gamma.check().unwrap_err().key;
        assert_eq!(key(Gamma::Constant { value: 0.0 }), "method.gamma");
        assert_eq!(key(Gamma::Constant { value: 1.5 }), "method.gamma");
        assert_eq!(key(Gamma::Cosine { min: 0.2, epochs: 0 }), "method.gamma.epochs");
        assert_eq!(key(Gamma::Adaptive { offset: f64::INFINITY }), "method.gamma.offset");
        assert_eq!(Gamma::Cosine { min: 0.2, epochs: 3 }.check(), Ok(0.2));
        assert_eq!(Gamma::Constant { value: 1.0 }.check(), Ok(1.0));
    }

    const INDIVIDUAL: Individual = Individual { rho: 0.3, rate: 0.1, beta: 0.8, clip: 2.0, range: [0.05, 0.7] };

    #[test]
    fn a_temperature_moves_by_the_averaged_and_clipped_gradient_within_its_range() {
        let near = |(tau, average): (f64, f64), want: (f64, f64)| {
            assert!((tau - want.0).abs() < 1e-12 && (average - want.1).abs() < 1e-12, "{tau} {average}");
        };
        // v = 0.2·1 + 0.8·0.5 = 0.6, τ = 0.5 − 0.06
        near(INDIVIDUAL.moved(0.5, 1.0, 0.5), (0.44, 0.6));
        // The gradient counts as 2, then as −2.
        near(INDIVIDUAL.moved(0.5, 0.0, 50.0), (0.34, 1.6));
        near(INDIVIDUAL.moved(0.5, 0.0, -50.0), (0.66, -1.6));
        // The range has the last word.
        near(INDIVIDUAL.moved(0.1, 0.0, 50.0), (0.05, 1.6));
        near(INDIVIDUAL.moved(0.65, 0.0, -50.0), (0.7, -1.6));
    }

    /// ∂F/∂τ = ln u + ρ − Σ softmax·s/τ at u = ĝ, the mean over the views; the first step has v = β·gradient.
    #[test]
    fn individual_temperatures_start_from_the_common_one() {
        let individual = Some(Individual { clip: 9.0, ..INDIVIDUAL });
        let out = forward(&SogClr { individual, ..loss(Variant::Default, 0.3) }, [None, None]);
        let of_anchor = |(_, g, pushed): (f64, f64, f64)| g.ln() + 0.3 - pushed / TEMPERATURE;
        let [a, b, a2, b2] = by_hand().map(of_anchor);
        let [_, (tau_name, taus), (grad_name, grads)] = &out.update.columns[..] else { panic!("three columns") };
        assert_eq!((*tau_name, *grad_name), (TAU, TAU_GRAD));
        for (i, gradient) in [(a + a2) / 2.0, (b + b2) / 2.0].into_iter().enumerate() {
            assert!((f64::from(grads[i]) - 0.8 * gradient).abs() < 1e-5, "{grads:?} {gradient}");
            assert!((f64::from(taus[i]) - (0.5 - 0.1 * 0.8 * gradient)).abs() < 1e-5, "{taus:?} {gradient}");
        }
    }

    #[test]
    fn impossible_temperatures_are_refused_by_their_key() {
        let key = |individual: Individual, tau| individual.check("method.learned", tau).unwrap_err().key;
        assert_eq!(INDIVIDUAL.check("method.learned", 0.5), Ok(()));
        assert_eq!(key(INDIVIDUAL, 0.8), "method.temperature");
        assert_eq!(key(Individual { range: [0.7, 0.05], ..INDIVIDUAL }, 0.5), "method.learned.range");
        assert_eq!(key(Individual { beta: 0.0, ..INDIVIDUAL }, 0.5), "method.learned.beta");
        assert_eq!(key(Individual { rate: f64::NAN, ..INDIVIDUAL }, 0.5), "method.learned.rate");
    }
}
