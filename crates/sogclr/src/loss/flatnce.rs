//! FlatNCE: exp(v − sg(v)) − 1 with v = ln Σ_neg exp((s − s⁺)/τ). Its value is always 0 and its gradient that of DCL; the
//! value reported is the cross-entropy ln(1 + e^v), which tells how far the positive stands out.

use super::views::Views;
use super::{Loss, LossError, LossInput, LossOutput};
use crate::math::log_add_exp;

/// FlatNCE.
#[derive(Clone, Debug)]
pub struct FlatNce {
    /// τ, what similarities are divided by.
    pub temperature: f64,
}

struct Anchor {
    positive: f64,
    log_negatives: f64,
    cross_entropy: f64,
}

impl Loss for FlatNce {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let tau = self.temperature;
        let views = Views::new(input)?;
        let anchors = views.map_anchors(
            |_| tau,
            |a, s, negatives| {
                let log_negatives = negatives.log_sum;
                let each = views.positives(a).map(|b| log_add_exp(0.0, log_negatives - f64::from(s[b]) / tau));
                let cross_entropy = each.sum::<f64>() / views.positive_count(a) as f64;
                Anchor { positive: views.positive_similarity(a, s), log_negatives, cross_entropy }
            },
        );
        let mean = 1.0 / views.anchors() as f64;
        let loss: f64 = anchors.iter().map(|a| a.cross_entropy).sum();
        let objective: f64 =
            anchors.iter().enumerate().map(|(a, x)| views.objective(a, x.positive, x.log_negatives, tau)).sum();

        // ∇ exp(v − sg(v)) = ∇v: softmax over the negatives, and −1 in all on the positives.
        let grads = views.decoupled_gradient(anchors.iter().map(|a| a.log_negatives), tau, |_| -1.0);
        LossOutput::contrasted(loss * mean, objective * mean, grads, input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{Dcl, EmbeddingSets, SetName};
    use crate::state::SampleState;
    use ndarray::array;

    /// s⁺ is 0.6 and 0.96 in both views; s⁻ are 0 and 0.28, 0 and 0.8, 0.8 and 0.936, 0.28 and 0.936.
    #[test]
    fn it_moves_as_dcl_and_reports_the_cross_entropy() {
        let (first, second) = (array![[2.0, 0.0], [0.0, 1.0]], array![[3.0, 4.0], [7.0, 24.0]]);
        let sets = EmbeddingSets::new(vec![(SetName::View(0), first), (SetName::View(1), second)]);
        let state = SampleState::new(2, &[]);
        let input = LossInput::new(&sets, &[0, 1], &state);
        let flat = FlatNce { temperature: 0.5 }.forward(&input).unwrap();
        let dcl = Dcl { temperature: 0.5, sigma: None }.forward(&input).unwrap();
        assert_eq!(flat.grads, dcl.grads);
        assert_eq!(flat.objective, dcl.objective);

        let anchors = [(0.6, 0.0, 0.28), (0.96, 0.0, 0.8), (0.6, 0.8, 0.936), (0.96, 0.28, 0.936)];
        let e = |s: f64| (s / 0.5).exp();
        let want: f64 = anchors.iter().map(|&(s, m, n)| ((e(m) + e(n)) / e(s)).ln_1p()).sum::<f64>() / 4.0;
        assert!((flat.loss - want).abs() < 1e-6, "{} {want}", flat.loss);
        assert!((flat.loss - dcl.loss).abs() > 0.1, "DCL's value is another");
    }
}
