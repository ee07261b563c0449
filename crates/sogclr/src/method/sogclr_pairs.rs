//! SogCLR on image–text pairs: the paper's two-way objective.
//!
//! ```text
//! z = h/‖h‖, h = image(x);  z′ = h/‖h‖, h = text(t)       [B, d]; s_ij = zᵢ·z′ⱼ
//! ĝ^I_i = 1/(B−1) Σⱼ≠ᵢ exp(s_ij/τ),  ĝ^T_i = 1/(B−1) Σⱼ≠ᵢ exp(s_ji/τ)
//! u^I_i ← (1−γ)u^I_i + γĝ^I_i, on i's first visit ĝ^I_i   as eq. (9), u^T_i likewise; no gradient
//! L = 1/(2B) Σᵢ [−2s_ii + Σⱼ≠ᵢ sg(exp(s_ij/τ)/((B−1)·u^I_i))·s_ij + Σⱼ≠ᵢ sg(exp(s_ji/τ)/((B−1)·u^T_i))·s_ji]
//! update both encoders by ∇L                              the new u^I and u^T are kept, as ln u
//!
//! variant = "algorithm1"   u^I_i and u^T_i as they were weigh L, as the paper prints it; on i's first visit ĝ
//! variant = "released"     an unseen u is 0; γ = 1 while the whole batch is unseen
//! include_positive         all j and B in place of j ≠ i and B − 1
//! ```

use super::pairs::TEMPERATURE;
use super::{Registered, Setting, Spec, check_temperature};
use crate::check::{Problem, require};
use crate::data::Modality;
use crate::loss::{Gamma, Loss, TwoWay, Variant};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SogCLR's hyper-parameters on image–text pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SogclrPairsConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// γ, the weight of the new estimate in u^I and u^T.
    pub gamma: Gamma,
    /// Which u weighs the gradient; `tf` is a program of images alone.
    #[serde(default, skip_serializing_if = "is_default")]
    pub variant: Variant,
    /// Sum over the matched pair as well, as the paper prints the objective.
    pub include_positive: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_default(variant: &Variant) -> bool {
    *variant == Variant::Default
}

impl Registered for SogclrPairsConfig {
    fn defaults(_: &Setting) -> Self {
        let gamma = Gamma::Constant { value: 0.8 };
        Self { temperature: TEMPERATURE, gamma, variant: Variant::Default, include_positive: false }
    }
}

impl Spec for SogclrPairsConfig {
    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        require(self.variant != Variant::Tf, "method.variant", || {
            "is tf, which stores the sum over two views of an image; a pair has one of each: use released".into()
        })?;
        self.gamma.check().map(|_| ())
    }

    fn modality(&self) -> Modality {
        Modality::Pairs
    }

    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn loss(&self) -> Box<dyn Loss> {
        let (variant, include_positive) = (self.variant, self.include_positive);
        Box::new(TwoWay { variant, include_positive, ..TwoWay::new(self.temperature, self.gamma) })
    }
}
