//! SiMo: NT-Xent whose negatives count as α (EqCo's margin). As its authors train it, queries of the first view meet the
//! momentum keys of the second, and the negatives are the keys of the batch's other images; without momentum both views
//! are queries and keys, as in SimCLR.
//!
//! ```text
//! q = h/‖h‖, h = head(encoder(x₁))                        [B, d]
//! k = h/‖h‖, h = follower(x₂)                             no gradient
//! L = 1/B Σᵢ [−qᵢ·kᵢ/τ + ln(exp(qᵢ·kᵢ/τ) + α/K·Σⱼ≠ᵢ exp(qᵢ·kⱼ/τ))]               K = B − 1
//! update encoder and head by ∇L
//! follower ← m·follower + (1 − m)·(encoder, head)
//!
//! m = 0: no follower, both views are anchors as in SimCLR
//! L = 1/(2B) Σ_a [−s⁺_a/τ + ln(exp(s⁺_a/τ) + α/K·Σ_{b∈B_a} exp(s_ab/τ))]         K = |B_a| = 2(B − 1)
//! update encoder and head by ∇L
//! ```

use super::momentum::{MomentumEncoder, check_momentum, default_momentum};
use super::{BuildContext, Method, Registered, Setting, Spec, StepEnd, check_temperature};
use crate::batch::Batch;
use crate::check::Problem;
use crate::comm::Group;
use crate::encoder::Model;
use crate::loss::{KeyNce, Loss, Negatives, NtXent, SetName};
use crate::math::Matrix;
use crate::params::{NamedTensors, ParamError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SiMo's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimoConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// α, the number of negatives to act like.
    pub alpha: f64,
    /// m of the momentum encoder; 0: no momentum encoder.
    pub momentum: f64,
}

impl Registered for SimoConfig {
    fn defaults(setting: &Setting) -> Self {
        // The paper's 0.1 on ImageNet, the same for all methods of its Table 5; its authors' on small images.
        let temperature = if setting.is_small { 0.2 } else { 0.1 };
        Self { temperature, alpha: 65536.0, momentum: default_momentum(setting) }
    }
}

impl Spec for SimoConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        if !(self.alpha > 0.0 && self.alpha.is_finite()) {
            return Err(Problem::new("method.alpha", format!("is {}; it must be positive (try 65536)", self.alpha)));
        }
        check_momentum(self.momentum)
    }

    fn is_two_view(&self) -> bool {
        self.momentum > 0.0
    }

    fn loss(&self) -> Box<dyn Loss> {
        let (temperature, alpha) = (self.temperature, Some(self.alpha));
        if self.momentum == 0.0 {
            return Box::new(NtXent { temperature, alpha });
        }
        Box::new(KeyNce { temperature, alpha, negatives: Negatives::Batch, queries: &[(SetName::View(0), 1.0)] })
    }

    fn build(&self, context: &BuildContext) -> Box<dyn Method> {
        if self.momentum == 0.0 {
            return Box::new(super::LossOnly(self.loss()));
        }
        Box::new(Simo { loss: self.loss(), follower: MomentumEncoder::new(context, self.momentum) })
    }
}

struct Simo {
    loss: Box<dyn Loss>,
    follower: MomentumEncoder,
}

impl Method for Simo {
    fn loss(&self) -> &dyn Loss {
        self.loss.as_ref()
    }

    fn query_views(&self, _: usize) -> usize {
        1
    }

    fn keys(&self, batch: &Batch, chunk: usize, group: &Group) -> Vec<(SetName, Matrix)> {
        let order: Vec<usize> = (0..batch.share.len()).collect();
        let at_once = batch.share.of_chunk(chunk);
        vec![(SetName::Key(1), self.follower.embed(&batch.crops[0], 1, &order, at_once, group))]
    }

    fn after_step(&mut self, end: StepEnd) {
        self.follower.follow(end.model);
    }

    fn starts_from(&mut self, model: &Model) -> Result<(), ParamError> {
        self.follower.copy(model)
    }

    fn export(&self) -> NamedTensors {
        let mut tensors = NamedTensors::new();
        self.follower.export(&mut tensors);
        tensors
    }

    fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        self.follower.import(tensors)
    }
}
