//! A whole training step on data that is already in memory: two views, forward, SogCLR loss, backward, SGD.

use super::{cpu_seconds, median, peak_rss_mb};
use crate::batch::{Batch, Crops};
use crate::comm::Solo;
use crate::encoder::{EncoderConfig, HeadConfig, Model};
use crate::loss::LossError;
use crate::math::{Purpose, SampleRng};
use crate::method::{MethodConfig, Parts, Setting};
use crate::optim::{Optimizer, OptimizerConfig, Sgd};
use crate::state::SampleState;
use crate::train::step;
use burn::tensor::Device;
use serde::Serialize;
use std::time::Instant;

/// Samples that have a u; a batch visits the first of them.
const SAMPLES: usize = 50_000;
const VIEWS: usize = 2;
/// Steps that are not counted.
pub const WARM_UP: usize = 3;

/// What to measure.
pub struct StepBench {
    pub encoder: EncoderConfig,
    pub head: HeadConfig,
    pub batch: usize,
    pub image_size: usize,
    pub steps: usize,
    pub device: Device,
}

/// Medians over the steps. A view is one image through the network: 2·batch of them in a step.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    pub views_per_s: f64,
    pub step_ms_median: f64,
    /// `null` where the system does not tell.
    pub cpu_s_per_step: Option<f64>,
    pub peak_rss_mb: Option<f64>,
}

impl StepBench {
    /// Runs the steps; `done` is called after each.
    pub fn run(&self, mut done: impl FnMut()) -> Result<StepReport, LossError> {
        let mut model = Model::new(&self.encoder, &self.head, 0, &self.device.clone().autodiff());
        let sgd = Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
        let mut optimizer = Optimizer::new(OptimizerConfig::Sgd(sgd));
        let setting = Setting { is_small: false, is_grey: false, samples: SAMPLES, batch: self.batch };
        let config = MethodConfig::defaults("sogclr", &setting).expect("a known name");
        let device = self.device.clone().autodiff();
        let mut method = config.spec().build(&Parts { encoder: &self.encoder, head: &self.head, seed: 0, device });
        let mut state = SampleState::new(SAMPLES.max(self.batch), method.loss().columns());
        let mut rng = SampleRng::new(0, Purpose::Augment, 0, 0, 0);
        let count = VIEWS * self.batch * 3 * self.image_size * self.image_size;
        let pixels: Vec<f32> = (0..count).map(|_| rng.uniform(-2.0, 2.0) as f32).collect();
        let mut batch = Batch {
            step: 0,
            epoch: 0,
            ids: (0..self.batch).collect(),
            ours: 0..self.batch,
            labels: None,
            crops: vec![Crops { count: VIEWS, size: self.image_size, pixels }],
            tiles: None,
        };
        let mut times = Vec::with_capacity(self.steps);
        let mut cpu = None;
        for index in 0..WARM_UP + self.steps {
            if index == WARM_UP {
                cpu = cpu_seconds();
            }
            batch.step = index;
            let start = Instant::now();
            (model, _) = step(model, &mut optimizer, &mut *method, &mut state, &batch, self.batch, &Solo, 0.01)?;
            if index >= WARM_UP {
                times.push(start.elapsed().as_secs_f64());
            }
            done();
        }
        let median = median(times);
        Ok(StepReport {
            views_per_s: (VIEWS * self.batch) as f64 / median,
            step_ms_median: 1e3 * median,
            cpu_s_per_step: cpu.zip(cpu_seconds()).map(|(before, after)| (after - before) / self.steps as f64),
            peak_rss_mb: peak_rss_mb(),
        })
    }
}
