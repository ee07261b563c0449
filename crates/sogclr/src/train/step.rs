//! One training step: crops and texts → encoders and head → gather → loss → backward → reduce → optimiser → state.
//!
//! The loss sees only embeddings on the host; its gradient goes back through the network as the gradient of
//! Σ h·sg(∂L/∂h). That allows a batch larger than the memory (gradient caching): embed it chunk by chunk and forget the
//! activations, take the loss over the whole batch, then embed each chunk again and send its gradient back. Gathering
//! and reducing are the identity in one process.

use crate::batch::{Batch, Share};
use crate::comm::Group;
use crate::encoder::{BufferUpdates, Compute, Cuts, Model, Pass, apply_buffers};
use crate::loss::{EmbeddingSets, LossError, LossInput, Progress, SetName};
use crate::math::Isa;
use crate::math::Matrix;
use crate::method::{Method, StepEnd};
use crate::optim::{NamedGrads, Optimizer, pull_back};
use crate::params::to_matrix;
use crate::state::SampleState;
use crate::system::awake;
use burn::tensor::{Device, Gradients, Tensor};
use ndarray::{Axis, s};
use std::ops::Range;

/// What there is to report of a step.
pub struct StepOutput {
    /// The loss.
    pub loss: f64,
    /// The batch's estimate of the global objective, where the method has one.
    pub objective: Option<f64>,
    /// What was contrasted.
    pub sets: EmbeddingSets,
}

/// How a step is made.
#[derive(Clone, Copy, Debug)]
pub struct StepPlan {
    /// Samples that go through the network at once, over all ranks.
    pub chunk: usize,
    /// The learning rate of this step.
    pub lr: f64,
    /// The largest learning rate of the run.
    pub peak_lr: f64,
    /// Steps of the whole run.
    pub total_steps: usize,
}

/// What a step changes: model, optimiser, method and per-sample state.
pub struct Learner {
    /// `None` only while the optimiser owns it.
    model: Option<Model>,
    /// Updates the model and the modules of the method.
    pub optimizer: Optimizer,
    /// The loss and what it trains with.
    pub method: Box<dyn Method>,
    /// What is kept for each sample.
    pub state: SampleState,
    isa: Isa,
}

/// Embeddings by name, on the autodiff graph.
type Embedded = Vec<(SetName, Tensor<2>)>;

impl Learner {
    /// The parts of a run before its first step, on `samples` images.
    pub fn new(model: Model, optimizer: Optimizer, method: Box<dyn Method>, samples: usize, compute: &Compute) -> Self {
        let state = SampleState::new(samples, method.loss().columns());
        Self { model: Some(model), optimizer, method, state, isa: compute.isa() }
    }

    /// The model as it is now.
    pub fn model(&self) -> &Model {
        self.model.as_ref().expect("between updates")
    }

    /// Replaces the model.
    pub fn set_model(&mut self, model: Model) {
        self.model = Some(model);
    }

    /// Advances by one batch. An error leaves everything as it was.
    pub fn step(&mut self, batch: &Batch, plan: &StepPlan, group: &Group) -> Result<StepOutput, LossError> {
        // On a thread of the pool: its parallel parts start at once, where another thread would have to be woken for each.
        rayon::scope(|_| awake(|| self.step_in_pool(batch, plan, group)))
    }

    fn step_in_pool(&mut self, batch: &Batch, plan: &StepPlan, group: &Group) -> Result<StepOutput, LossError> {
        let (model, method) = (self.model(), self.method.as_ref());
        let device = first_device(model);
        let (share, chunk) = (batch.share.len(), batch.share.of_chunk(plan.chunk));
        let chunks: Vec<Range<usize>> =
            (0..share).step_by(chunk).map(|first| first..(first + chunk).min(share)).collect();
        let at = Progress { step: batch.step, total_steps: plan.total_steps, epoch: batch.epoch };
        let mut updates = BufferUpdates::default();
        // The graph of this rank's last chunk is cut where others wait for its gradients.
        let train = |rows: &Range<usize>, updates: &mut BufferUpdates| {
            let mut cuts = Cuts::default();
            let mut pass = match group.size() > 1 && rows.end == share {
                true => Pass::TrainInParts(updates, &mut cuts, group),
                false => Pass::Train(updates, group),
            };
            (embed(model, method, batch, rows.clone(), &device, &mut pass), cuts)
        };

        // h [share, dim] of each set; a batch in one piece keeps its graph
        let mut kept = None;
        let mut raw: Vec<(SetName, Matrix)> = if let [whole] = &chunks[..] {
            let trained = train(whole, &mut updates);
            let raw = to_host(&trained.0);
            kept = Some(trained);
            raw
        } else {
            // Off the graph, which would keep the activations.
            let device = device.clone().inner();
            let pieces = chunks
                .iter()
                .map(|rows| to_host(&embed(model, method, batch, rows.clone(), &device, &mut Pass::Batch(group))));
            stack(pieces.collect())
        };
        raw.extend(method.keys(batch, plan.chunk, group));

        // h [B, dim] of each set, over all ranks
        let gather = |(name, h): (SetName, Matrix)| (name, batch.share.gather(group, h));
        let sets = EmbeddingSets::new(raw.into_iter().map(gather).collect());
        let out = method.loss().forward(&LossInput {
            labels: batch.labels.as_deref(),
            queue: method.queue(),
            large_views: batch.crops[0].count,
            ours: batch.share.range().unwrap_or(0..batch.ids.len()),
            at,
            isa: self.isa,
            ..LossInput::new(&sets, &batch.ids, &self.state)
        })?;
        if !out.loss.is_finite() {
            return Err(LossError::NonFiniteLoss);
        }
        let dh = of_our_rows(out.grads, &batch.share);

        let embedded = |rows: &Range<usize>| kept.take().unwrap_or_else(|| train(rows, &mut updates));
        let (grads, modules) = summed_gradients(model, method, &chunks, &dh, group, embedded)?;

        // Nothing below can fail.
        let model = self.model.take().expect("between updates");
        let model = apply_buffers(self.optimizer.step(model, grads, plan.lr), &mut updates);
        let model = self.model.insert(model);
        self.state.commit(out.update);
        self.method.after_step(StepEnd {
            model,
            optimizer: &mut self.optimizer,
            sets: &sets,
            modules,
            buffers: updates,
            parameters: out.parameter_grads,
            lr: plan.lr,
            peak_lr: plan.peak_lr,
            at,
        });
        Ok(StepOutput { loss: out.loss, objective: out.objective, sets })
    }
}

/// Every set of the samples `rows`: one forward pass for each size of crop and group of batch norm.
fn embed(
    model: &Model,
    method: &dyn Method,
    batch: &Batch,
    rows: Range<usize>,
    device: &Device,
    pass: &mut Pass,
) -> Embedded {
    let group = (batch.share.len() / method.norm_groups()).min(rows.len());
    let rows: Vec<usize> = rows.collect();
    let mut groups = rows.chunks(group).map(|rows| {
        let mut sets = Embedded::new();
        let mut left = method.query_views(batch.crops.iter().map(|crops| crops.count).sum());
        for crops in &batch.crops {
            let views = crops.count.min(left);
            left -= views;
            if views == 0 {
                break;
            }
            // h [views·rows, dim]
            let h = model.forward(crops.tensor(0..views, rows, device), pass);
            let first = sets.len();
            sets.extend(
                (0..views)
                    .map(|view| (SetName::View(first + view), h.clone().narrow(0, view * rows.len(), rows.len()))),
            );
        }
        if let (Some(text), Some(texts)) = (&model.text, &batch.texts) {
            let (ids, ends) = texts.rows(rows);
            sets.push((SetName::Text, text.forward(&ids, &ends, device)));
        }
        let further = method.further_sets(model, batch, rows, &sets, pass);
        sets.extend(further);
        sets
    });
    let first = groups.next().expect("a batch is not empty");
    let rest: Vec<Embedded> = groups.collect();
    if rest.is_empty() {
        return first;
    }
    let joined = first.into_iter().enumerate().map(|(set, (name, h))| {
        let pieces = std::iter::once(h).chain(rest.iter().map(|group| group[set].1.clone())).collect();
        (name, Tensor::cat(pieces, 0))
    });
    joined.collect()
}

/// The gradients of the model and of the method's modules, over all chunks and ranks. The last chunk goes back part by part:
/// while one part is on its way, the gradients of the one before are summed over the ranks.
fn summed_gradients(
    model: &Model,
    method: &dyn Method,
    chunks: &[Range<usize>],
    dh: &[(SetName, Matrix)],
    group: &Group,
    mut embedded: impl FnMut(&Range<usize>) -> (Embedded, Cuts),
) -> Result<(NamedGrads, NamedGrads), LossError> {
    let (mut grads, mut modules) = (NamedGrads::default(), NamedGrads::default());
    let mut sums = Vec::new();
    for (index, rows) in chunks.iter().enumerate() {
        let (embedded, mut cuts) = embedded(rows);
        let mut gradients = backward(&embedded, dh, rows.clone())?;
        drop(embedded);
        loop {
            let part = NamedGrads::collect(model, &mut gradients);
            modules.add(method.collect(&mut gradients));
            let ready = part.names();
            grads.add(part);
            if index + 1 == chunks.len() {
                sums.push(grads.take(&ready).begin_sum(group));
            }
            match cuts.pull_back(&mut gradients) {
                Some(earlier) => gradients = earlier,
                None => break,
            }
        }
    }
    let modules = modules.begin_sum(group).wait();
    sums.into_iter().for_each(|sum| grads.add(sum.wait()));
    Ok((grads, modules))
}

/// The gradients of Σ h·sg(∂L/∂h) over all sets that have one.
fn backward(embedded: &Embedded, dh: &[(SetName, Matrix)], rows: Range<usize>) -> Result<Gradients, LossError> {
    let term = |(name, dh): &(SetName, Matrix)| {
        let (_, h) = embedded.iter().find(|(n, _)| n == name).ok_or(LossError::Missing(*name))?;
        Ok((h.clone(), dh.slice(s![rows.clone(), ..]).to_owned()))
    };
    let terms: Vec<_> = dh.iter().map(term).collect::<Result<_, LossError>>()?;
    match terms.is_empty() {
        true => Err(LossError::NoGradient),
        false => Ok(pull_back(terms)),
    }
}

/// ∂L/∂h of this rank's rows: a loss gives them alone where they are neighbours in the batch, and otherwise all.
fn of_our_rows(dh: Vec<(SetName, Matrix)>, share: &Share) -> Vec<(SetName, Matrix)> {
    if share.range().is_some() {
        return dh;
    }
    let places = share.places();
    dh.into_iter().map(|(name, dh)| (name, dh.select(Axis(0), &places))).collect()
}

/// Chunk after chunk, set by set.
fn stack(pieces: Vec<Vec<(SetName, Matrix)>>) -> Vec<(SetName, Matrix)> {
    let sets = pieces[0].iter().enumerate().map(|(set, (name, _))| {
        let blocks: Vec<_> = pieces.iter().map(|piece| piece[set].1.view()).collect();
        (*name, ndarray::concatenate(Axis(0), &blocks).expect("chunks have one dimension"))
    });
    sets.collect()
}

fn first_device(model: &Model) -> Device {
    use burn::module::Module;
    model.devices().first().cloned().expect("a model has parameters").autodiff()
}

fn to_host(embedded: &Embedded) -> Vec<(SetName, Matrix)> {
    embedded.iter().map(|(name, h)| (*name, to_matrix(h.clone().inner()))).collect()
}
