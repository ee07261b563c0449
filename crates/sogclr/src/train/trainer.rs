//! The training loop: batches in, checkpoints and metrics out, from any step to the end.

use super::metrics::Window;
use super::signals::History;
use super::{Checkpoint, Metric, Metrics, Run, Signals, StepOutput, TrainError, Verdict, open_device, step};
use crate::batch::{Batch, BatchPlan, Loader, Rendering};
use crate::comm::Collective;
use crate::config::RunConfig;
use crate::data::Split;
use crate::encoder::{Model, NamedTensors, ParamError, export, from_open_clip, import};
use crate::method::{Method, Parts};
use crate::optim::Optimizer;
use crate::state::SampleState;
use crate::storage::load_tensors;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Finished,
    /// Asked to stop; a checkpoint was written.
    Stopped,
}

/// What an observer is told after each step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Steps done.
    pub step: usize,
    pub total_steps: usize,
    pub steps_per_epoch: usize,
    pub batch: usize,
    pub loss: f64,
    pub objective: f64,
    /// Time of this step, waiting included.
    pub elapsed: Duration,
    /// Of which waiting for data.
    pub waited: Duration,
    /// From the newest line of metrics.
    pub signals: Option<Signals>,
    pub verdict: Verdict,
}

/// A model in training.
pub struct Trainer {
    config: RunConfig,
    plan: BatchPlan,
    /// `None` only while a step owns it.
    model: Option<Model>,
    optimizer: Optimizer,
    method: Box<dyn Method>,
    state: SampleState,
    step: usize,
    window: Window,
}

impl Trainer {
    /// A fresh start on `samples` images, from the weights that `train.init` names where it does.
    pub fn new(config: &RunConfig, samples: usize) -> Result<Self, TrainError> {
        let mut fresh = Self::drawn(config, samples)?;
        if let Some(path) = &config.train.init {
            let misfit = |error: ParamError| TrainError::Checkpoint { path: path.clone(), cause: error.to_string() };
            let (weights, _) = load_tensors(path)?;
            let model = fresh.model.take().expect("a fresh trainer has a model");
            let model = start_from(model, &weights).map_err(misfit)?;
            fresh.method.starts_from(&model).map_err(misfit)?;
            fresh.model = Some(model);
        }
        Ok(fresh)
    }

    /// Weights as the seed draws them.
    fn drawn(config: &RunConfig, samples: usize) -> Result<Self, TrainError> {
        let device = open_device(config.train.device)?.autodiff();
        let model = config.model();
        let parts = Parts { model: &model, seed: config.seed, device: device.clone() };
        let method = config.method.spec().build(&parts);
        Ok(Self {
            plan: plan(config, samples),
            model: Some(Model::new(&model, config.seed, &device)),
            optimizer: Optimizer::new(config.optimizer.clone()),
            state: SampleState::new(samples, method.loss().columns()),
            method,
            step: 0,
            window: Window::default(),
            config: config.clone(),
        })
    }

    /// Continues from a checkpoint.
    pub fn restore(config: &RunConfig, samples: usize, checkpoint: Checkpoint) -> Result<Self, TrainError> {
        let misfit = |cause: String| TrainError::Checkpoint { path: "the checkpoint".into(), cause };
        if checkpoint.method != config.method.name() {
            return Err(misfit(format!("it was made by {}, not {}", checkpoint.method, config.method.name())));
        }
        // Checkpoints of before settings were kept are trusted.
        if !checkpoint.config.is_null()
            && let Some((key, was, is)) = first_difference(&checkpoint.config, &deciding(config))
        {
            return Err(TrainError::Edited { key, was, is });
        }
        if checkpoint.state.samples() != samples {
            return Err(misfit(format!("it knows {} samples, the data has {samples}", checkpoint.state.samples())));
        }
        let mut fresh = Self::drawn(config, samples)?;
        let model = fresh.model.take().expect("a fresh trainer has a model");
        fresh.model = Some(import(model, &checkpoint.model)?);
        let device = open_device(config.train.device)?;
        let step = checkpoint.step as u64;
        let trained = [&checkpoint.model, &checkpoint.method_tensors];
        fresh.optimizer = Optimizer::import(config.optimizer.clone(), step, &checkpoint.optimizer, &trained, &device)?;
        fresh.method.import(&checkpoint.method_tensors)?;
        fresh.state = checkpoint.state;
        fresh.step = checkpoint.step;
        fresh.window = checkpoint.window;
        Ok(fresh)
    }

    pub fn step(&self) -> usize {
        self.step
    }

    pub fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            step: self.step,
            method: self.config.method.name().to_owned(),
            config: deciding(&self.config),
            model: export(self.model.as_ref().expect("between steps")),
            optimizer: self.optimizer.export(),
            method_tensors: self.method.export(),
            state: self.state.clone(),
            window: self.window.clone(),
        }
    }

    /// Trains to the end, or until `stop` is set. Checkpoints are written at the start, in intervals, when asked to
    /// stop and at the end.
    pub fn train(
        &mut self,
        run: &Run,
        split: Arc<Split>,
        comm: &dyn Collective,
        stop: &AtomicBool,
        mut observe: impl FnMut(&StepReport),
    ) -> Result<Outcome, TrainError> {
        let per_epoch = self.plan.steps_per_epoch();
        let mut metrics = Metrics::open(&run.metrics_path(), self.step)?;
        if self.step == 0 {
            run.save(&self.checkpoint(), per_epoch)?;
        }
        let ranks = (comm.rank(), comm.size());
        let rendering = Rendering {
            augment: self.config.augment.clone(),
            context: self.config.text.as_ref().map(|text| text.context),
            seed: self.config.seed,
        };
        let loader = Loader::start(split, rendering, self.plan.clone(), self.step, ranks);
        let interval = Duration::from_secs_f64(60.0 * self.config.train.checkpoint_minutes);
        let report_every = per_epoch.div_ceil(100);
        let mut history = History::default();
        let mut newest = (None, Verdict::Learning);
        for line in Metrics::read(&run.metrics_path()) {
            history.push(line.objective);
            newest = (line.signals, line.verdict);
        }
        let mut saved = Instant::now();
        loop {
            let began = Instant::now();
            let Some(batch) = loader.next_batch() else { break };
            let batch = match batch {
                Ok(batch) => batch,
                Err(source) => {
                    metrics.sync()?;
                    run.save(&self.checkpoint(), per_epoch)?;
                    return Err(TrainError::DataLost { step: self.step, source });
                }
            };
            let waited = began.elapsed();
            let out = self.advance(batch, comm)?;
            let elapsed = began.elapsed();
            self.window.add(&out, elapsed, waited);
            let (total_steps, finished) = (self.plan.total_steps(), self.step == self.plan.total_steps());
            if self.step.is_multiple_of(report_every) || finished {
                history.push(self.window.objective / self.window.steps as f64);
                let signals = Signals::of(&out.sets);
                newest = (signals, signals.map_or(Verdict::Learning, |signals| history.verdict(&signals)));
                metrics.append(&self.metric(newest))?;
                self.window = Window::default();
            }
            observe(&StepReport {
                step: self.step,
                total_steps,
                steps_per_epoch: per_epoch,
                batch: self.plan.batch,
                loss: out.loss,
                objective: out.objective,
                elapsed,
                waited,
                signals: newest.0,
                verdict: newest.1,
            });
            let stopping = stop.load(Ordering::Relaxed);
            let every = self.config.train.keep_every.map(|epochs| epochs * per_epoch);
            if stopping
                || finished
                || saved.elapsed() >= interval
                || every.is_some_and(|every| self.step.is_multiple_of(every))
            {
                metrics.sync()?;
                run.save(&self.checkpoint(), per_epoch)?;
                saved = Instant::now();
            }
            if stopping && !finished {
                return Ok(Outcome::Stopped);
            }
        }
        match (self.step, self.plan.total_steps()) {
            (step, total) if step < total => Err(TrainError::Incomplete { step, total }),
            _ => Ok(Outcome::Finished),
        }
    }

    fn advance(&mut self, batch: Batch, comm: &dyn Collective) -> Result<StepOutput, TrainError> {
        let lr = self.learning_rate(self.step);
        let chunk = self.config.train.micro_batch.unwrap_or(batch.ours.len());
        let model = self.model.take().expect("between steps");
        let (optimizer, method) = (&mut self.optimizer, self.method.as_mut());
        let (model, out) = step(model, optimizer, method, &mut self.state, &batch, chunk, comm, lr)
            .map_err(|source| TrainError::Loss { step: self.step, source })?;
        self.model = Some(model);
        self.step += 1;
        Ok(out)
    }

    fn learning_rate(&self, step: usize) -> f64 {
        let plan = &self.plan;
        self.config.learning_rate.at(step, plan.batch, plan.epochs, plan.steps_per_epoch())
    }

    fn metric(&self, (signals, verdict): (Option<Signals>, Verdict)) -> Metric {
        let (window, steps) = (&self.window, self.window.steps as f64);
        let seconds = window.seconds.max(1e-9);
        Metric {
            step: self.step,
            epoch: self.step as f64 / self.plan.steps_per_epoch() as f64,
            loss: window.loss / steps,
            objective: window.objective / steps,
            lr: self.learning_rate(self.step - 1),
            signals,
            verdict,
            images_per_s: steps * self.plan.batch as f64 / seconds,
            data_wait: window.waited / seconds,
        }
    }
}

/// The model with exported weights in place of its own; a head keeps what it has.
fn start_from(model: Model, weights: &NamedTensors) -> Result<Model, ParamError> {
    let given: NamedTensors = match model.text {
        Some(_) => from_open_clip(weights),
        None => {
            // torchvision's classifier and counters have no place in an encoder.
            let is_ours = |name: &str| !name.starts_with("fc.") && !name.ends_with("num_batches_tracked");
            let ours = weights.iter().filter(|(name, _)| is_ours(name));
            ours.map(|(name, tensor)| (format!("encoder.{name}"), tensor.clone())).collect()
        }
    };
    let mut all = export(&model);
    all.retain(|name, _| name.starts_with("head."));
    all.extend(given);
    import(model, &all)
}

fn plan(config: &RunConfig, samples: usize) -> BatchPlan {
    BatchPlan { samples, batch: config.train.batch, epochs: config.train.epochs, seed: config.seed }
}

/// The settings that decide what a run becomes: not where its data lies, which the manifest checks, nor what may change on the
/// way.
fn deciding(config: &RunConfig) -> Value {
    let mut all = serde_json::to_value(config).expect("plain data");
    let table = all.as_object_mut().expect("a configuration is a table");
    table.remove("data");
    if let Some(train) = table.get_mut("train").and_then(Value::as_object_mut) {
        ["device", "checkpoint_minutes", "keep_every", "init"].iter().for_each(|free| drop(train.remove(*free)));
    }
    all
}

/// The first key whose value differs, with both values.
fn first_difference(was: &Value, is: &Value) -> Option<(String, String, String)> {
    match (was, is) {
        (Value::Object(old), Value::Object(new)) => old.keys().chain(new.keys()).find_map(|key| {
            let at = |table: &Map<String, Value>| table.get(key).cloned().unwrap_or(json!("not there"));
            let (below, was, is) = first_difference(&at(old), &at(new))?;
            Some((if below.is_empty() { key.clone() } else { format!("{key}.{below}") }, was, is))
        }),
        _ => (was != is).then(|| (String::new(), was.to_string(), is.to_string())),
    }
}
