//! SogCLR, the paper's method.
//!
//! ```text
//! z = h/‖h‖, h = head(encoder(x)) of both views           anchors a, [2B, d]; s_ab = z_a·z_b, s⁺_a with the other view
//! ĝ_a = 1/|B_a| Σ_{b∈B_a} exp(s_ab/τ)                     eq. (2) as a mean; B_a are the 2(B−1) views of other images
//! U_a = (1−γ)u_i + γĝ_a, on i's first visit ĝ_a           eq. (9) for each view of image i, no gradient
//! L = 1/(2B) Σ_a [−s⁺_a + Σ_{b∈B_a} sg(exp(s_ab/τ)/(|B_a|·(U_a + ε₀)))·s_ab]    ∇L is eq. (10) with p = τ/(ε₀ + U_a)
//! update encoder and head by ∇L                           Algorithm 1, lines 9–10: `optimizer.kind = "momentum"`
//! u_i ← ½(U_a + U_a′)                                     a, a′ are i's views; one number for each image, as ln u
//!
//! variant = "algorithm1"   U_a = u_i as it was, on i's first visit ½(ĝ_a + ĝ_a′); u_i ← (1−γ)u_i + γ·½(ĝ_a + ĝ_a′)
//! variant = "released"     an unseen u_i is 0; γ = 1 while the whole batch is unseen
//! variant = "tf"           an unseen u_i is 0; u_i ← U_a + U_a′
//! repulsion                ρ in place of 1 before Σ_{b∈B_a} in L
//! by_label                 s⁺_a is the mean over the other views of a's class, B_a are the views of other classes
//! ```

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::{Problem, require};
use crate::loss::{Gamma, Loss, SogClr, Variant};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SogCLR's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SogclrConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// γ, the weight of the new estimate in u.
    pub gamma: Gamma,
    /// Which reading of Algorithm 1.
    pub variant: Variant,
    /// ε₀ added to u in the weight; 0 leaves it out.
    pub epsilon: f64,
    /// Multiplies the push from the negatives; 1 is the paper's.
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    pub repulsion: f64,
    /// Use labels: positives are all images of a class, negatives those of other classes.
    pub by_label: bool,
}

fn whole() -> f64 {
    1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_whole(share: &f64) -> bool {
    *share == 1.0
}

impl Registered for SogclrConfig {
    fn defaults(setting: &Setting) -> Self {
        // The paper's 0.1 on ImageNet; the same as SimCLR's on small images, where 0.1 to 0.3 differ little.
        let temperature = if setting.is_small { 0.2 } else { 0.1 };
        Self {
            temperature,
            gamma: Gamma::Constant { value: 0.8 },
            variant: Variant::Default,
            epsilon: 0.0,
            repulsion: 1.0,
            by_label: false,
        }
    }
}

impl Spec for SogclrConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        let lowest = self.gamma.check()?;
        if self.variant == Variant::Tf && lowest <= 0.5 {
            let problem =
                format!("falls to {lowest:.1}; u diverges for γ ≤ 0.5 in the tf variant, choose another variant");
            return Err(Problem::new("method.gamma", problem));
        }
        if !(self.epsilon >= 0.0 && self.epsilon.is_finite()) {
            return Err(Problem::new("method.epsilon", format!("is {}; it must be 0 or more", self.epsilon)));
        }
        require(self.repulsion > 0.0 && self.repulsion.is_finite(), "method.repulsion", || {
            format!("is {}; it must be positive (1 is the paper's)", self.repulsion)
        })
    }

    fn needs_labels(&self) -> bool {
        self.by_label
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(SogClr {
            temperature: self.temperature,
            gamma: self.gamma,
            variant: self.variant,
            epsilon: self.epsilon,
            repulsion: self.repulsion,
            by_label: self.by_label,
            individual: None,
        })
    }
}
