//! iSogCLR: SogCLR with a learned temperature for each sample, kept in the state beside u.
//!
//! ```text
//! z = h/‖h‖, h = head(encoder(x)) of both views           anchors a, [2B, d]; s_ab = z_a·z_b, s⁺_a with the other view
//! ĝ_a = 1/|B_a| Σ_{b∈B_a} exp(s_ab/τ_i)                   B_a are the 2(B−1) views of other images
//! U_a = (1−γ)u_i + γĝ_a, on i's first visit ĝ_a           for each view of image i
//! p_ab = exp(s_ab/τ_i)/(|B_a|·U_a)                        ĝ, U, p and τ have no gradient
//! L = 1/(2B) Σ_a [−s⁺_a + Σ_{b∈B_a} p_ab·s_ab]
//! update encoder and head by ∇L
//! ∂F/∂τ_i = mean over i's views of [ln U_a + ρ − Σ_{b∈B_a} p_ab·s_ab/τ_i]
//! v_i ← (1−β)v_i + β·clip(∂F/∂τ_i)                        to ±`clip`; v_i = 0 at the start
//! τ_i ← τ_i − η·v_i within `range`                        τ_i = `temperature` at the start
//! u_i ← ½(U_a + U_a′)
//! ```

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{Gamma, Individual, Loss, SogClr};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// iSogCLR's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IsogclrConfig {
    /// τ of every sample at the start.
    pub temperature: f64,
    /// γ, the weight of the new estimate in u.
    pub gamma: Gamma,
    /// How the temperatures move.
    pub individual: Individual,
}

impl Registered for IsogclrConfig {
    fn defaults(setting: &Setting) -> Self {
        // Its authors' on ImageNet and on CIFAR.
        let (rho, rate, beta) = if setting.is_small { (0.4, 0.03, 0.5) } else { (0.3, 0.01, 0.9) };
        let individual = Individual { rho, rate, beta, clip: 3.0, range: [0.05, 0.7] };
        Self { temperature: 0.1, gamma: Gamma::Constant { value: 0.8 }, individual }
    }
}

impl Spec for IsogclrConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        self.gamma.check()?;
        self.individual.check("method.individual", self.temperature)
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(SogClr { individual: Some(self.individual), ..SogClr::new(self.temperature, self.gamma) })
    }
}
