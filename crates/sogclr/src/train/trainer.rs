//! The training loop: batches in, checkpoints and metrics out, from any step to the end.

use super::init::Init;
use super::metrics::Window;
use super::ranks::{first_difference, still_alike};
use super::signals::History;
use super::{
    Checkpoint, Metric, Metrics, Run, Signals, Spent, StepOutput, StepPlan, TrainError, Verdict, step::Learner,
};
use crate::batch::{Batch, BatchPlan, Loader, Rendering, Share};
use crate::comm::Group;
use crate::config::{ConfigError, RunConfig};
use crate::data::Split;
use crate::encoder::{Compute, Model};
use crate::method::{BuildContext, MethodConfig};
use crate::optim::Optimizer;
use crate::params::{export, import};
use crate::provenance::Provenance;
use crate::state::SampleState;
use serde_json::Value;
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
    /// Where the time of this step went.
    pub spent: Spent,
    /// From the newest line of metrics.
    pub signals: Option<Signals>,
    /// From the newest line of metrics.
    pub verdict: Verdict,
}

/// What a step takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// All of it.
    pub seconds: f64,
    /// Share of that spent waiting for data.
    pub waited: f64,
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
    pub fn new(config: &RunConfig, samples: usize, compute: &Compute) -> Result<Self, TrainError> {
        Self::start(config, samples, compute, Init::read(config)?.as_ref())
    }

    /// The same from what was read already.
    pub(super) fn start(
        config: &RunConfig,
        samples: usize,
        compute: &Compute,
        init: Option<&Init>,
    ) -> Result<Self, TrainError> {
        let mut fresh = Self::drawn(config, samples, compute)?;
        if let Some(init) = init {
            let model = init.fill(fresh.learner.model().clone(), config)?;
            fresh.learner.method.starts_from(&model).map_err(|error| init.misfit(&error, config))?;
            fresh.learner.set_model(model);
        }
        Ok(fresh)
    }

    /// The same on another number of images, before the first step.
    pub(super) fn on(mut self, samples: usize) -> Self {
        self.plan = plan(&self.config, samples);
        let columns = self.learner.method.loss().columns();
        self.learner.state = SampleState::new(samples, columns);
        self
    }

    /// What is kept for each image.
    pub(super) fn state(&mut self) -> &mut SampleState {
        &mut self.learner.state
    }

    /// Weights as the seed draws them.
    fn drawn(config: &RunConfig, samples: usize, compute: &Compute) -> Result<Self, TrainError> {
        if let MethodConfig::External(method) = &config.method
            && !method.is_here()
        {
            return Err(TrainError::ExternalMethod(method.name().to_owned()));
        }
        let compute = compute.autodiff();
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
    pub fn restore(
        config: &RunConfig,
        samples: usize,
        checkpoint: Checkpoint,
        compute: &Compute,
    ) -> Result<Self, TrainError> {
        let misfit = |cause: String| TrainError::Misfit(cause);
        if checkpoint.method != config.method.name() {
            return Err(misfit(format!("it was made by {}, not {}", checkpoint.method, config.method.name())));
        }
        // Checkpoints of before settings were kept are trusted.
        if !checkpoint.config.is_null()
            && let Some((key, was, is)) =
                first_difference(&lasting(checkpoint.config.clone()), &lasting(deciding(config)))
        {
            return Err(TrainError::Edited { key, was, is });
        }
        if checkpoint.state.samples() != samples {
            return Err(misfit(format!("it knows {} samples, the data has {samples}", checkpoint.state.samples())));
        }
        let mut fresh = Self::drawn(config, samples, compute)?;
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

    /// Trains to the end, or until `observe` breaks on any rank. Checkpoints are written at the start, in intervals, when
    /// asked to stop and at the end. Rank 0 alone has the `run`.
    pub fn train(
        &mut self,
        run: Option<&Run>,
        split: Arc<Split>,
        group: &Group,
        mut observe: impl FnMut(&StepReport) -> ControlFlow<()>,
    ) -> Result<Outcome, TrainError> {
        let per_epoch = self.plan.steps_per_epoch();
        let mut log = group.together(Log::open(run, self.step, per_epoch))?;
        if self.step == 0 {
            self.save(run, &log, group)?;
        }
        let loader = self.loader(split, group)?;
        let interval = Duration::from_secs_f64(60.0 * self.config.train.checkpoint_minutes);
        let mut saved = Instant::now();
        while self.step < self.plan.total_steps() {
            let (began, exchanged) = (Instant::now(), group.spent());
            let batch = self.next_batch(&loader);
            let waited = began.elapsed();
            let batch = match group.any(batch.is_err()) {
                true => {
                    self.save(run, &log, group)?;
                    group.together(batch)?
                }
                false => batch?,
            };
            let out = self.advance(&batch, group)?;
            let exchanged = (group.size() > 1).then(|| group.spent() - exchanged);
            let spent = Spent { elapsed: began.elapsed(), waited, exchanged };
            self.window.add(&out, &spent);
            let finished = self.step == self.plan.total_steps();
            let written = match self.step.is_multiple_of(log.every) || finished {
                true => self.write_line(&mut log, &out),
                false => Ok(()),
            };
            let stopping = observe(&self.report(&out, &log, spent)).is_break();
            // Each rank may be asked to stop; the clock of the first says when to save.
            let is_due = group.is_first() && saved.elapsed() >= interval;
            let [stopping, is_due, failed] = group.any_of([stopping, is_due, written.is_err()]);
            if failed {
                group.together(written)?;
            }
            if stopping || finished || is_due || self.is_kept() {
                self.save(run, &log, group)?;
                saved = Instant::now();
            }
            if stopping && !finished {
                return Ok(Outcome::Stopped);
            }
        }
        Ok(Outcome::Finished)
    }

    /// The next batch of this rank.
    fn next_batch(&self, loader: &Loader) -> Result<Batch, TrainError> {
        let (step, total) = (self.step, self.plan.total_steps());
        let batch = loader.next_batch().ok_or(TrainError::Incomplete { step, total })?;
        batch.map_err(|source| TrainError::DataLost { step, source })
    }

    /// What a step takes, waiting for data included: the median of the steps after the first, of which no more are made than
    /// `patience` allows. Writes nothing.
    pub fn time_steps(&mut self, split: Arc<Split>, group: &Group, patience: Duration) -> Result<StepTime, TrainError> {
        let (loader, start) = (self.loader(split, group)?, Instant::now());
        let (mut seconds, mut waited) = (Vec::new(), Duration::ZERO);
        while seconds.len() < 2 || start.elapsed() < patience {
            let began = Instant::now();
            if self.step == self.plan.total_steps() {
                break;
            }
            let batch = self.next_batch(&loader)?;
            waited += if seconds.is_empty() { Duration::ZERO } else { began.elapsed() };
            self.advance(&batch, group)?;
            seconds.push(began.elapsed().as_secs_f64());
        }
        // The first allocates and warms up, and counts only where there is no other.
        let rest = &mut seconds[1..];
        rest.sort_by(f64::total_cmp);
        let waited = waited.as_secs_f64() / rest.iter().sum::<f64>().max(1e-9);
        Ok(StepTime { seconds: rest.get(rest.len() / 2).copied().unwrap_or(seconds[0]), waited })
    }

    fn loader(&self, split: Arc<Split>, group: &Group) -> Result<Loader, TrainError> {
        let rendering = Rendering {
            augment: self.config.augment.clone(),
            context: self.config.text.as_ref().map(|text| text.context),
            seed: self.config.seed,
            layout: self.compute.layout(),
        };
        Ok(Loader::start(split, rendering, self.plan.clone(), self.step, self.share(group)?))
    }

    /// What this rank holds of every batch.
    pub fn share(&self, group: &Group) -> Result<Share, ConfigError> {
        let groups = self.learner.method.norm_groups();
        Ok(Share::of(group, self.plan.batch, groups, self.config.train.micro_batch)?)
    }

    /// Writes a checkpoint, on rank 0, of what all ranks have.
    fn save(&self, run: Option<&Run>, log: &Log, group: &Group) -> Result<(), TrainError> {
        let checkpoint = self.checkpoint();
        still_alike(group, &checkpoint)?;
        let write = |run: &Run| {
            // Metrics first: the checkpoint counts on them.
            log.metrics.as_ref().map_or(Ok(()), Metrics::sync)?;
            run.save(&checkpoint, self.plan.steps_per_epoch())
        };
        Ok(group.together(run.map_or(Ok(()), write))?)
    }

    /// Whether the user wants to keep the checkpoint of this step.
    fn is_kept(&self) -> bool {
        let every = self.config.train.keep_every.map(|epochs| epochs * self.plan.steps_per_epoch());
        every.is_some_and(|every| self.step.is_multiple_of(every))
    }

    /// One line of metrics over the steps since the last.
    fn write_line(&mut self, log: &mut Log, out: &StepOutput) -> Result<(), TrainError> {
        let Some(metrics) = log.metrics.as_mut() else { return Ok(()) };
        log.history.push(self.window.falling() / self.window.steps as f64);
        log.signals = Signals::of(&out.sets, self.compute.isa());
        log.verdict = log.signals.map_or(Verdict::Early, |signals| log.history.verdict(&signals));
        metrics.append(&self.metric(log.signals, log.verdict))?;
        self.window = Window::default();
        Ok(())
    }

    fn report(&self, out: &StepOutput, log: &Log, spent: Spent) -> StepReport {
        StepReport {
            step: self.step,
            total_steps: self.plan.total_steps(),
            steps_per_epoch: self.plan.steps_per_epoch(),
            batch: self.plan.batch,
            loss: out.loss,
            objective: out.objective,
            spent,
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

    fn metric(&self, signals: Option<Signals>, verdict: Verdict) -> Metric {
        let (window, steps) = (&self.window, self.window.steps as f64);
        let seconds = window.seconds.max(1e-9);
        Metric {
            step: self.step,
            epoch: self.step as f64 / self.plan.steps_per_epoch() as f64,
            loss: window.loss / steps,
            objective: window.objective.map(|sum| sum / steps),
            lr: self.learning_rate(self.step - 1),
            signals,
            verdict,
            images_per_s: steps * self.plan.batch as f64 / seconds,
            data_wait: window.waited / seconds,
            rank_wait: window.exchanged.map(|exchanged| exchanged / seconds),
        }
    }
}

/// `metrics.jsonl`, and what its lines say so far.
struct Log {
    /// Of rank 0 alone.
    metrics: Option<Metrics>,
    history: History,
    /// Of the newest line.
    signals: Option<Signals>,
    verdict: Verdict,
    /// Steps of a line.
    every: usize,
}

impl Log {
    fn open(run: Option<&Run>, step: usize, steps_per_epoch: usize) -> Result<Self, TrainError> {
        let every = super::metrics::line_every(steps_per_epoch);
        let mut log =
            Self { metrics: None, history: History::default(), signals: None, verdict: Verdict::Early, every };
        let Some(path) = run.map(Run::metrics_path) else { return Ok(log) };
        log.metrics = Some(Metrics::open(&path, step)?);
        for line in Metrics::read(&path) {
            log.history.push(line.objective.unwrap_or(line.loss));
            (log.signals, log.verdict) = (line.signals, line.verdict);
        }
        Ok(log)
    }
}

pub(super) fn plan(config: &RunConfig, samples: usize) -> BatchPlan {
    BatchPlan { samples, batch: config.train.batch, epochs: config.train.epochs, seed: config.seed }
}

/// The settings that decide what a run becomes: not where its data lies, which the manifest checks, nor what may change on the
/// way.
pub(super) fn deciding(config: &RunConfig) -> Value {
    let mut all = serde_json::to_value(config).expect("plain data");
    let table = all.as_object_mut().expect("a configuration is a table");
    table.remove("data");
    if let Some(train) = table.get_mut("train").and_then(Value::as_object_mut) {
        ["device", "checkpoint_minutes", "keep_every", "init"].iter().for_each(|free| drop(train.remove(*free)));
    }
    all
}

/// Those that a run keeps from its first step to its last.
fn lasting(mut settings: Value) -> Value {
    if let Some(train) = settings.get_mut("train").and_then(Value::as_object_mut) {
        train.remove("precision");
    }
    settings
}
