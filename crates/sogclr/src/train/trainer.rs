//! The training loop: batches in, checkpoints and metrics out, from any step to the end.

use super::metrics::Window;
use super::signals::History;
use super::{
    Checkpoint, Learner, Metric, Metrics, Run, Signals, StepOutput, StepPlan, TrainError, Verdict, open_device,
};
use crate::batch::{Batch, BatchPlan, Loader, Rendering, Share};
use crate::comm::Group;
use crate::config::{ConfigError, RunConfig};
use crate::data::Split;
use crate::encoder::{Compute, Model, from_open_clip};
use crate::method::{BuildContext, MethodConfig};
use crate::optim::Optimizer;
use crate::params::{NamedTensors, ParamError, export, import};
use crate::provenance::Provenance;
use crate::storage::load_tensors;
use serde_json::{Map, Value, json};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every step is done.
    Finished,
    /// Asked to stop; a checkpoint was written.
    Stopped,
}

/// What an observer is told after each step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Steps done.
    pub step: usize,
    /// Steps of the whole run.
    pub total_steps: usize,
    /// Steps of one pass over the data.
    pub steps_per_epoch: usize,
    /// Samples of a step, over all ranks.
    pub batch: usize,
    /// Loss of this step.
    pub loss: f64,
    /// The batch's estimate of the global objective, where the method has one.
    pub objective: Option<f64>,
    /// Time of this step, waiting included.
    pub elapsed: Duration,
    /// Of which waiting for data.
    pub waited: Duration,
    /// From the newest line of metrics.
    pub signals: Option<Signals>,
    /// From the newest line of metrics.
    pub verdict: Verdict,
}

/// A model in training.
pub struct Trainer {
    config: RunConfig,
    plan: BatchPlan,
    learner: Learner,
    step: usize,
    window: Window,
    compute: Compute,
    provenance: Provenance,
}

impl Trainer {
    /// A fresh start on `samples` images, from the weights that `train.init` names where it does.
    pub fn new(config: &RunConfig, samples: usize) -> Result<Self, TrainError> {
        let mut fresh = Self::drawn(config, samples)?;
        if let Some(path) = &config.train.init {
            let misfit = |error: ParamError| TrainError::Checkpoint { path: path.clone(), cause: error.to_string() };
            let (weights, _) = load_tensors(path)?;
            let model = start_from(fresh.learner.model().clone(), config, &weights).map_err(misfit)?;
            fresh.learner.method.starts_from(&model).map_err(misfit)?;
            fresh.learner.set_model(model);
        }
        Ok(fresh)
    }

    /// Weights as the seed draws them.
    fn drawn(config: &RunConfig, samples: usize) -> Result<Self, TrainError> {
        if let MethodConfig::External(method) = &config.method
            && !method.is_here()
        {
            return Err(TrainError::ExternalMethod(method.name().to_owned()));
        }
        let compute = open_device(config.train.device)?.autodiff();
        let model = config.model();
        let context = BuildContext { model: &model, seed: config.seed, compute: compute.clone() };
        let method = config.method.spec().build(&context);
        let (model, optimizer) = (Model::new(&model, config.seed, &compute), Optimizer::new(config.optimizer.clone()));
        Ok(Self {
            plan: plan(config, samples),
            learner: Learner::new(model, optimizer, method, samples, &compute),
            step: 0,
            window: Window::default(),
            config: config.clone(),
            compute,
            provenance: Provenance::default(),
        })
    }

    /// Continues from a checkpoint.
    pub fn restore(config: &RunConfig, samples: usize, checkpoint: Checkpoint) -> Result<Self, TrainError> {
        let misfit = |cause: String| TrainError::Misfit(cause);
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
        let learner = &mut fresh.learner;
        learner.set_model(import(learner.model().clone(), &checkpoint.model)?);
        let device = fresh.compute.inner().device().clone();
        let step = checkpoint.step as u64;
        let trained = [&checkpoint.model, &checkpoint.method_tensors];
        learner.optimizer =
            Optimizer::import(config.optimizer.clone(), step, &checkpoint.optimizer, &trained, &device)?;
        learner.method.import(&checkpoint.method_tensors)?;
        learner.state = checkpoint.state;
        fresh.step = checkpoint.step;
        fresh.window = checkpoint.window;
        Ok(fresh)
    }

    /// The same for a program that says what it is.
    pub fn by(self, provenance: Provenance) -> Self {
        Self { provenance, ..self }
    }

    /// Who trains.
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// The model as it is now.
    pub fn model(&self) -> &Model {
        self.learner.model()
    }

    /// Steps done.
    pub fn step(&self) -> usize {
        self.step
    }

    /// Which samples meet in which step.
    pub fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    /// Everything that decides the rest of the run, as it is now.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            step: self.step,
            method: self.config.method.name().to_owned(),
            config: deciding(&self.config),
            model: export(self.learner.model()),
            optimizer: self.learner.optimizer.export(),
            method_tensors: self.learner.method.export(),
            state: self.learner.state.clone(),
            window: self.window.clone(),
            provenance: self.provenance.clone(),
        }
    }

    /// Trains to the end, or until `observe` breaks. Checkpoints are written at the start, in intervals, when asked to
    /// stop and at the end.
    pub fn train(
        &mut self,
        run: &Run,
        split: Arc<Split>,
        group: &Group,
        mut observe: impl FnMut(&StepReport) -> ControlFlow<()>,
    ) -> Result<Outcome, TrainError> {
        let per_epoch = self.plan.steps_per_epoch();
        let mut log = Log::open(run, self.step, per_epoch)?;
        if self.step == 0 {
            run.save(&self.checkpoint(), per_epoch)?;
        }
        let loader = self.loader(split, group)?;
        let interval = Duration::from_secs_f64(60.0 * self.config.train.checkpoint_minutes);
        let mut saved = Instant::now();
        loop {
            let began = Instant::now();
            let Some(batch) = loader.next_batch() else { break };
            let batch = match batch {
                Ok(batch) => batch,
                Err(source) => {
                    self.save(run, &log)?;
                    return Err(TrainError::DataLost { step: self.step, source });
                }
            };
            let waited = began.elapsed();
            let out = self.advance(&batch, group)?;
            let elapsed = began.elapsed();
            self.window.add(&out, elapsed, waited);
            let finished = self.step == self.plan.total_steps();
            if self.step.is_multiple_of(log.every) || finished {
                self.write_line(&mut log, &out)?;
            }
            let stopping = observe(&self.report(&out, &log, elapsed, waited)).is_break();
            if stopping || finished || saved.elapsed() >= interval || self.is_kept() {
                self.save(run, &log)?;
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

    /// Seconds of a step, waiting for data included: the median of the steps after the first, of which no more are made than
    /// `patience` allows. Writes nothing.
    pub fn time_steps(&mut self, split: Arc<Split>, group: &Group, patience: Duration) -> Result<f64, TrainError> {
        let (loader, start) = (self.loader(split, group)?, Instant::now());
        let mut seconds = Vec::new();
        while seconds.len() < 2 || start.elapsed() < patience {
            let began = Instant::now();
            let Some(batch) = loader.next_batch() else { break };
            let batch = batch.map_err(|source| TrainError::DataLost { step: self.step, source })?;
            self.advance(&batch, group)?;
            seconds.push(began.elapsed().as_secs_f64());
        }
        // The first allocates and warms up, and counts only where there is no other.
        let rest = &mut seconds[1..];
        rest.sort_by(f64::total_cmp);
        Ok(rest.get(rest.len() / 2).copied().unwrap_or(seconds[0]))
    }

    fn loader(&self, split: Arc<Split>, group: &Group) -> Result<Loader, TrainError> {
        let rendering = Rendering {
            augment: self.config.augment.clone(),
            context: self.config.text.as_ref().map(|text| text.context),
            seed: self.config.seed,
            layout: self.compute.layout(),
        };
        let groups = self.learner.method.norm_groups();
        let share =
            Share::of(group, self.plan.batch, groups, self.config.train.micro_batch).map_err(ConfigError::from)?;
        Ok(Loader::start(split, rendering, self.plan.clone(), self.step, share))
    }

    /// Metrics first: the checkpoint counts on them.
    fn save(&self, run: &Run, log: &Log) -> Result<(), TrainError> {
        log.metrics.sync()?;
        run.save(&self.checkpoint(), self.plan.steps_per_epoch())
    }

    /// Whether the user wants to keep the checkpoint of this step.
    fn is_kept(&self) -> bool {
        let every = self.config.train.keep_every.map(|epochs| epochs * self.plan.steps_per_epoch());
        every.is_some_and(|every| self.step.is_multiple_of(every))
    }

    /// One line of metrics over the steps since the last.
    fn write_line(&mut self, log: &mut Log, out: &StepOutput) -> Result<(), TrainError> {
        log.history.push(self.window.falling() / self.window.steps as f64);
        log.signals = Signals::of(&out.sets, self.compute.isa());
        log.verdict = log.signals.map_or(Verdict::Learning, |signals| log.history.verdict(&signals));
        log.metrics.append(&self.metric(log))?;
        self.window = Window::default();
        Ok(())
    }

    fn report(&self, out: &StepOutput, log: &Log, elapsed: Duration, waited: Duration) -> StepReport {
        StepReport {
            step: self.step,
            total_steps: self.plan.total_steps(),
            steps_per_epoch: self.plan.steps_per_epoch(),
            batch: self.plan.batch,
            loss: out.loss,
            objective: out.objective,
            elapsed,
            waited,
            signals: log.signals,
            verdict: log.verdict,
        }
    }

    fn advance(&mut self, batch: &Batch, group: &Group) -> Result<StepOutput, TrainError> {
        let plan = StepPlan {
            chunk: self.config.train.micro_batch.unwrap_or(self.plan.batch),
            lr: self.learning_rate(self.step),
            peak_lr: self.config.learning_rate.peak(self.plan.batch),
            total_steps: self.plan.total_steps(),
        };
        let out = self.learner.step(batch, &plan, group);
        let out = out.map_err(|source| TrainError::Loss { step: self.step, source })?;
        self.step += 1;
        Ok(out)
    }

    fn learning_rate(&self, step: usize) -> f64 {
        let plan = &self.plan;
        self.config.learning_rate.at(step, plan.batch, plan.epochs, plan.steps_per_epoch())
    }

    fn metric(&self, log: &Log) -> Metric {
        let (window, steps) = (&self.window, self.window.steps as f64);
        let seconds = window.seconds.max(1e-9);
        Metric {
            step: self.step,
            epoch: self.step as f64 / self.plan.steps_per_epoch() as f64,
            loss: window.loss / steps,
            objective: window.objective.map(|sum| sum / steps),
            lr: self.learning_rate(self.step - 1),
            signals: log.signals,
            verdict: log.verdict,
            images_per_s: steps * self.plan.batch as f64 / seconds,
            data_wait: window.waited / seconds,
        }
    }
}

/// `metrics.jsonl`, and what its lines say so far.
struct Log {
    metrics: Metrics,
    history: History,
    /// Of the newest line.
    signals: Option<Signals>,
    verdict: Verdict,
    /// Steps of a line.
    every: usize,
}

impl Log {
    fn open(run: &Run, step: usize, steps_per_epoch: usize) -> Result<Self, TrainError> {
        let path = run.metrics_path();
        let metrics = Metrics::open(&path, step)?;
        let (mut history, mut newest) = (History::default(), (None, Verdict::Learning));
        for line in Metrics::read(&path) {
            history.push(line.objective.unwrap_or(line.loss));
            newest = (line.signals, line.verdict);
        }
        let (signals, verdict) = newest;
        Ok(Self { metrics, history, signals, verdict, every: steps_per_epoch.div_ceil(100) })
    }
}

/// The model with exported weights in place of its own; a head keeps what it has.
fn start_from(model: Model, config: &RunConfig, weights: &NamedTensors) -> Result<Model, ParamError> {
    let given: NamedTensors = match model.text {
        Some(_) => from_open_clip(weights),
        None => {
            let ours = weights.iter().filter(|(name, _)| !config.encoder.spec().is_foreign(name));
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
