//! MoCo v2: queries of the first view against the momentum key of the second and a queue of earlier keys, one direction.
//!
//! ```text
//! q = h/‖h‖, h = head(encoder(x₁))                        [B, d]; batch norm sees norm_groups groups, one at a time
//! deal the images to groups of the same size anew, by a permutation of this step
//! k = h/‖h‖, h = follower(x₂)                             [B, d], no gradient; batch norm sees the new groups
//! L = 1/B Σᵢ [−qᵢ·kᵢ/τ + ln(exp(qᵢ·kᵢ/τ) + Σⱼ exp(qᵢ·Qⱼ/τ))]        Q [K, d], keys of earlier batches, no gradient
//! update encoder and head by ∇L
//! follower ← m·follower + (1 − m)·(encoder, head)
//! Q ← k in place of the oldest rows                       at the start random directions
//! ```
//!
//! Batch norm sees groups of the batch, and the keys are dealt to the groups in another order than the queries: a query
//! cannot find its key by the statistics that they share. On one machine the groups stand for the authors' GPUs.

use super::momentum::{MomentumEncoder, check_momentum, default_momentum};
use super::queue::{FeatureQueue, check_queue, default_queue};
use super::{BuildContext, Method, Recipe, Registered, Setting, Spec, StepEnd, check_temperature};
use crate::augment::Preset;
use crate::batch::Batch;
use crate::check::Problem;
use crate::comm::Group;
use crate::encoder::Model;
use crate::loss::{KeyNce, Loss, Negatives, SetName};
use crate::math::{Matrix, Purpose, SampleRng};
use crate::optim::{LearningRate, OptimizerConfig, Scaling, Sgd};
use crate::params::{NamedTensors, ParamError};
use ndarray::{ArrayView2, Axis};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// MoCo's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MocoConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// Keys of earlier batches that serve as negatives; at most as many as there are images.
    pub queue: usize,
    /// m of the momentum encoder.
    pub momentum: f64,
    /// Groups of the batch that batch norm sees one at a time; must divide the batch.
    pub norm_groups: usize,
}

impl Registered for MocoConfig {
    fn defaults(setting: &Setting) -> Self {
        Self {
            temperature: if setting.is_small { 0.1 } else { 0.2 },
            queue: default_queue(setting),
            momentum: default_momentum(setting),
            norm_groups: default_groups(setting.batch),
        }
    }
}

impl Spec for MocoConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        check_momentum(self.momentum)
    }

    fn check_setting(&self, samples: usize, batch: usize) -> Result<(), Problem> {
        check_queue(self.queue, samples)?;
        check_groups(self.norm_groups, batch)
    }

    fn is_two_view(&self) -> bool {
        true
    }

    fn norm_groups(&self) -> usize {
        self.norm_groups
    }

    fn preset(&self, setting: &Setting) -> Option<Preset> {
        // CIFAR's preset has MoCo's jitter already.
        (!setting.is_small && !setting.is_grey).then_some(Preset::Mocov2)
    }

    fn adjust(&self, setting: &Setting, recipe: &mut Recipe) {
        adjust_moco(setting, recipe);
    }

    fn loss(&self) -> Box<dyn Loss> {
        let queries = &[(SetName::View(0), 1.0)];
        Box::new(KeyNce { temperature: self.temperature, alpha: None, negatives: Negatives::Queue, queries })
    }

    fn build(&self, context: &BuildContext) -> Box<dyn Method> {
        Box::new(Moco {
            loss: self.loss(),
            keys: QueuedKeys::new(context, self.momentum, self.queue, self.norm_groups),
        })
    }
}

/// MLP head without batch norm; SGD at 0.03·B/256, no warm-up.
// Deviation: on small images MoCo keeps the LARS of all other methods. SGD hardly moves there at small batches: 67 instead
// of 76 % in twelve epochs of the demo's data.
pub(super) fn adjust_moco(setting: &Setting, recipe: &mut Recipe) {
    recipe.head.norm = false;
    if !setting.is_small {
        recipe.optimizer = OptimizerConfig::Sgd(Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 });
        recipe.learning_rate =
            LearningRate { base: 0.03, scaling: Scaling::Linear, warmup_epochs: 0.0, warmup_steps: None };
    }
}

/// Eight groups as on the authors' eight GPUs, fewer where a group would have less than 8 images.
pub(super) fn default_groups(batch: usize) -> usize {
    [8, 4, 2].into_iter().find(|groups| batch.is_multiple_of(*groups) && batch / groups >= 8).unwrap_or(1)
}

pub(super) fn check_groups(groups: usize, batch: usize) -> Result<(), Problem> {
    if groups >= 1 && batch.is_multiple_of(groups) && batch / groups >= 2 {
        return Ok(());
    }
    let problem = format!("is {groups}; it must divide the batch of {batch} into groups of at least 2 images");
    Err(Problem::new("method.norm_groups", problem))
}

/// Momentum keys of the second view, and the queue of those of earlier batches.
pub(super) struct QueuedKeys {
    follower: MomentumEncoder,
    queue: FeatureQueue,
    groups: usize,
    seed: u64,
}

impl QueuedKeys {
    pub fn new(context: &BuildContext, momentum: f64, queue: usize, groups: usize) -> Self {
        Self {
            follower: MomentumEncoder::new(context, momentum),
            queue: FeatureQueue::new(queue, context.model.output(), context.seed),
            groups,
            seed: context.seed,
        }
    }

    pub fn groups(&self) -> usize {
        self.groups
    }

    pub fn queue(&self) -> ArrayView2<'_, f32> {
        self.queue.rows()
    }

    /// The keys, normalised in groups that are dealt anew in every step.
    pub fn embed(&self, batch: &Batch, chunk: usize, group: &Group) -> Vec<(SetName, Matrix)> {
        let samples = batch.ids.len();
        let order = SampleRng::new(self.seed, Purpose::Keys, batch.step as u64, 0, 0).permutation(samples);
        let at_once = (samples / self.groups).min(chunk);
        // A rank takes an equal part of each new group; its images may lie on any rank.
        let (pixels, part) = (batch.whole_view(1, group), at_once / group.size());
        let of_rank =
            |rank: usize| order.chunks(at_once).flat_map(move |new| new.chunks(part).nth(rank).unwrap_or(&[]));
        let ours: Vec<usize> = of_rank(group.rank()).copied().collect();
        let dealt = group.gather(self.follower.embed(&pixels, 0, &ours, part, group));
        let mut keys = Matrix::zeros(dealt.dim());
        for (&place, key) in (0..group.size()).flat_map(of_rank).zip(dealt.outer_iter()) {
            keys.row_mut(place).assign(&key);
        }
        vec![(SetName::Key(1), keys.select(Axis(0), &batch.share.places()))]
    }

    pub fn after_step(&mut self, end: &StepEnd) {
        self.follower.follow(end.model);
        self.queue.push(end.sets.get(SetName::Key(1)).expect("keys were contrasted").unit());
    }

    pub fn starts_from(&mut self, model: &Model) -> Result<(), ParamError> {
        self.follower.copy(model)
    }

    pub fn export(&self) -> NamedTensors {
        let mut tensors = NamedTensors::new();
        self.follower.export(&mut tensors);
        self.queue.export(&mut tensors);
        tensors
    }

    pub fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        self.follower.import(tensors)?;
        self.queue.import(tensors)
    }
}

struct Moco {
    loss: Box<dyn Loss>,
    keys: QueuedKeys,
}

impl Method for Moco {
    fn loss(&self) -> &dyn Loss {
        self.loss.as_ref()
    }

    fn query_views(&self, _: usize) -> usize {
        1
    }

    fn norm_groups(&self) -> usize {
        self.keys.groups()
    }

    fn keys(&self, batch: &Batch, chunk: usize, group: &Group) -> Vec<(SetName, Matrix)> {
        self.keys.embed(batch, chunk, group)
    }

    fn queue(&self) -> Option<ArrayView2<'_, f32>> {
        Some(self.keys.queue())
    }

    fn after_step(&mut self, end: StepEnd) {
        self.keys.after_step(&end);
    }

    fn starts_from(&mut self, model: &Model) -> Result<(), ParamError> {
        self.keys.starts_from(model)
    }

    fn export(&self) -> NamedTensors {
        self.keys.export()
    }

    fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        self.keys.import(tensors)
    }
}
