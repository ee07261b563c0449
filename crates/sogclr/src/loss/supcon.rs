//! SupCon: the positives of an anchor are all views of its class; the mean of their cross-entropies against every other
//! row, positives included.

use super::views::Views;
use super::{Loss, LossError, LossInput, LossOutput};
use crate::math::{log_add_exp, log_sum_exp};

/// The supervised contrastive loss.
#[derive(Clone, Debug)]
pub struct SupCon {
    /// τ, what similarities are divided by.
    pub temperature: f64,
}

struct Anchor {
    positive: f64,
    /// ln Σ over positives and negatives of exp(s/τ)
    log_all: f64,
    /// ln Σ_neg exp(s/τ)
    log_negatives: f64,
}

impl Loss for SupCon {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let tau = self.temperature;
        let views = Views::by_label(input)?;
        let anchors = views.map_anchors(
            |_| tau,
            |a, s, negatives| {
                let log_negatives = negatives.log_sum;
                let own = views.positives(a).map(|b| f64::from(s[b]) / tau);
                let log_all = log_add_exp(log_negatives, log_sum_exp(own));
                Anchor { positive: views.positive_similarity(a, s), log_all, log_negatives }
            },
        );
        let mean = 1.0 / views.anchors() as f64;
        let loss: f64 = anchors.iter().map(|a| a.log_all - a.positive / tau).sum();
        let objective: f64 =
            anchors.iter().enumerate().map(|(a, x)| views.objective(a, x.positive, x.log_negatives, tau)).sum();

        let scale = (mean / tau) as f32;
        let offset: Vec<f32> = anchors.iter().map(|a| -a.log_all as f32).collect();
        let grads = views.softmax_gradient(&vec![(1.0 / tau) as f32; anchors.len()], &offset, scale, |a, b, s| {
            let pull = |anchor: usize, key: usize| match views.positive_weight(anchor, key) {
                0.0 => 0.0,
                weight => (s / tau as f32 + offset[anchor]).exp() - weight,
            };
            scale * (pull(a, b) + pull(b, a))
        });
        LossOutput::contrasted(loss * mean, objective * mean, grads, input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{EmbeddingSets, NtXent, SetName};
    use crate::state::SampleState;
    use ndarray::{Array1, array};

    fn forward(loss: &dyn Loss, labels: Option<&[u32]>) -> Result<LossOutput, LossError> {
        let (first, second) =
            (array![[2.0, 0.0], [0.0, 1.0], [-4.0, 3.0]], array![[3.0, 4.0], [7.0, 24.0], [0.0, -2.0]]);
        let sets = EmbeddingSets::new(vec![(SetName::View(0), first), (SetName::View(1), second)]);
        let state = SampleState::new(3, &[]);
        loss.forward(&LossInput { labels, ..LossInput::new(&sets, &[0, 1, 2], &state) })
    }

    /// Every other row is in the sum, those of the anchor's label are the positives.
    #[test]
    fn labels_decide_who_is_positive() {
        let z: [Array1<f64>; 6] =
            [[1.0, 0.0], [0.0, 1.0], [-0.8, 0.6], [0.6, 0.8], [0.28, 0.96], [0.0, -1.0]].map(|z| array![z[0], z[1]]);
        for labels in [[7, 3, 7], [7, 7, 3], [5, 5, 5]] {
            let of_anchor = |a: usize| {
                let others = (0..6).filter(|&b| b != a);
                let all = others.clone().map(|b| (z[a].dot(&z[b]) / 0.5).exp()).sum::<f64>().ln();
                let own: Vec<f64> =
                    others.filter(|b| labels[b % 3] == labels[a % 3]).map(|b| z[a].dot(&z[b])).collect();
                all - own.iter().sum::<f64>() / own.len() as f64 / 0.5
            };
            let want = (0..6).map(of_anchor).sum::<f64>() / 6.0;
            let out = forward(&SupCon { temperature: 0.5 }, Some(&labels)).unwrap();
            assert!((out.loss - want).abs() < 1e-5, "{labels:?}: {} {want}", out.loss);
        }
    }

    #[test]
    fn with_a_label_for_each_sample_it_is_ntxent() {
        let ours = forward(&SupCon { temperature: 0.5 }, Some(&[9, 2, 4])).unwrap();
        let plain = forward(&NtXent { temperature: 0.5, alpha: None }, None).unwrap();
        assert!((ours.loss - plain.loss).abs() < 1e-6);
        for ((_, ours), (_, plain)) in ours.grads.iter().zip(&plain.grads) {
            assert!((ours - plain).iter().all(|d| d.abs() < 1e-6));
        }
        assert_eq!(forward(&SupCon { temperature: 0.5 }, None).err(), Some(LossError::NoLabels));
    }
}
