//! A whole training step on data that is already in memory: two views, forward, SogCLR loss, backward, SGD; or, with a clip
//! encoder, image–text pairs, the two-way loss and AdamW.

use super::{peak_rss_mb, time};
use crate::batch::{Batch, Crops, Share, Texts};
use crate::comm::Group;
use crate::data::Modality;
use crate::encoder::{Compute, Model, ModelConfig};
use crate::loss::LossError;
use crate::math::{Purpose, SampleRng};
use crate::method::{BuildContext, MethodConfig, Setting};
use crate::optim::{AdamW, Optimizer, OptimizerConfig, Sgd};
use crate::text::{END, START};
use crate::train::{Learner, StepPlan};
use burn::module::Module;
use serde::Serialize;
use std::time::Instant;

/// Samples that have a u; a batch visits the first of them.
const SAMPLES: usize = 50_000;
const RATE: f64 = 1e-3;
/// Tokens of a random text, START and END included.
const TOKENS: std::ops::Range<usize> = 10..27;
/// Steps that are not counted.
pub const WARM_UP: usize = 3;

/// What to measure.
pub struct StepBench {
    /// What is trained; with a text encoder, on image–text pairs.
    pub model: ModelConfig,
    /// Samples of a step.
    pub batch: usize,
    /// Steps that are measured, after [`WARM_UP`] others.
    pub steps: usize,
    /// Where.
    pub compute: Compute,
}

/// Medians over the steps. A view is one image through the network: 2·batch of them in a step, or one for each text.
#[derive(Clone, Debug, Serialize)]
pub struct StepSpeed {
    /// Views per second.
    pub views_per_s: f64,
    /// Milliseconds of a step.
    pub step_ms_median: f64,
    /// `null` where the system does not tell.
    pub cpu_s_per_step: Option<f64>,
    /// Most memory of the process at once in MiB; `null` where the system does not tell.
    pub peak_rss_mb: Option<f64>,
    /// Values that are trained.
    pub parameters: usize,
    /// Share of the time inside collectives, waiting for other ranks included.
    pub rank_wait: f64,
}

impl StepBench {
    /// Runs the steps with the other ranks of `group`, of which this one has `share` of the batch; `done` is called after each.
    pub fn run(&self, group: &Group, share: Share, mut done: impl FnMut()) -> Result<StepSpeed, LossError> {
        let compute = self.compute.autodiff();
        let model = Model::new(&self.model, 0, &compute);
        let has_text = self.model.text.is_some();
        let optimizer = Optimizer::new(match has_text {
            true => OptimizerConfig::Adamw(AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 }),
            false => OptimizerConfig::Sgd(Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 }),
        });
        let (samples, batch) = (SAMPLES, self.batch);
        let modality = if has_text { Modality::Pairs } else { Modality::Images };
        let setting = Setting { is_small: false, is_grey: false, modality, samples, batch, epochs: 1 };
        let config = MethodConfig::named("sogclr", &setting).expect("a known name");
        let parameters = model.num_params();
        let method = config.spec().build(&BuildContext { model: &self.model, seed: 0, compute });
        let mut learner = Learner::new(model, optimizer, method, SAMPLES.max(self.batch), &self.compute);
        let plan = StepPlan { chunk: self.batch, lr: RATE, peak_lr: RATE, total_steps: WARM_UP + self.steps };
        let mut rng = SampleRng::new(0, Purpose::Augment, 0, 0, 0);
        let (views, size, channels) = (if has_text { 1 } else { 2 }, self.model.image_size, self.model.channels);
        let pixels: Vec<f32> =
            (0..views * share.len() * channels * size * size).map(|_| rng.uniform(-2.0, 2.0) as f32).collect();
        let texts = self.model.text.as_ref().map(|text| random_texts(share.len(), text.context, &mut rng));
        let mut batch = Batch {
            step: 0,
            epoch: 0,
            ids: (0..self.batch).collect(),
            share,
            labels: None,
            crops: vec![Crops { pixels, ..Crops::new(views, size, channels, share.len(), self.compute.layout()) }],
            tiles: None,
            texts,
        };
        let (mut began, mut spent) = (Instant::now(), group.spent());
        let timing = time(WARM_UP, self.steps, |index| {
            if index == WARM_UP {
                (began, spent) = (Instant::now(), group.spent());
            }
            batch.step = index;
            learner.step(&batch, &plan, group)?;
            done();
            Ok(())
        })?;
        let rank_wait = (group.spent() - spent).as_secs_f64() / began.elapsed().as_secs_f64();
        Ok(StepSpeed {
            parameters,
            rank_wait,
            views_per_s: (views * self.batch) as f64 / timing.seconds,
            step_ms_median: 1e3 * timing.seconds,
            cpu_s_per_step: timing.cpu_seconds,
            peak_rss_mb: peak_rss_mb(),
        })
    }
}

/// Texts of random words, as long as captions are.
fn random_texts(count: usize, context: usize, rng: &mut SampleRng) -> Texts {
    let (mut ids, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let length = (rng.uniform(TOKENS.start as f64, TOKENS.end as f64) as usize).min(context);
        let mut text = vec![0; context];
        text[..length].fill_with(|| rng.uniform(300.0, 40_000.0) as u32);
        (text[0], text[length - 1]) = (START, END);
        ids.extend(text);
        ends.push(length - 1);
    }
    Texts { context, ids, ends }
}
