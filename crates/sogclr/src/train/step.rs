//! One training step: crops and texts → encoders and head → gather → loss → backward → reduce → optimiser → state.
//!
//! The loss sees only embeddings on the host; its gradient goes back through the network as the gradient of
//! Σ h·sg(∂L/∂h). That allows a batch larger than the memory (gradient caching): embed it chunk by chunk and forget the
//! activations, take the loss over the whole batch, then embed each chunk again and send its gradient back. Gathering
//! and reducing are the identity in one process.

use crate::batch::Batch;
use crate::comm::Collective;
use crate::encoder::{BufferUpdates, Model, Pass, apply_buffers};
use crate::loss::{EmbeddingSets, LossError, LossInput, SetName};
use crate::math::{Matrix, UnitRows};
use crate::method::{Done, Method};
use crate::optim::{NamedGrads, Optimizer};
use crate::state::SampleState;
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use ndarray::{Axis, s};
use std::ops::Range;

/// What there is to report of a step.
pub struct StepOutput {
    pub loss: f64,
    pub objective: f64,
    /// What was contrasted.
    pub sets: EmbeddingSets,
}

/// Embeddings by name, on the autodiff graph.
type Embedded = Vec<(SetName, Tensor<2>)>;

/// Advances model, optimiser, per-sample state and method by one batch, of which `chunk` samples go through the network
/// at once.
#[allow(clippy::too_many_arguments)] // the parts of a step, each used once
pub fn step(
    model: Model,
    optimizer: &mut Optimizer,
    method: &mut dyn Method,
    state: &mut SampleState,
    batch: &Batch,
    chunk: usize,
    comm: &dyn Collective,
    lr: f64,
) -> Result<(Model, StepOutput), LossError> {
    // On a thread of the pool: its parallel parts start at once, where another thread would have to be woken for each.
    rayon::scope(|_| {
        let device = first_device(&model);
        let share = batch.ours.len();
        let chunks: Vec<Range<usize>> =
            (0..share).step_by(chunk).map(|first| first..(first + chunk).min(share)).collect();
        let mut updates = BufferUpdates::default();

        // h [share, dim] of each set; a batch in one piece keeps its graph
        let mut kept = None;
        let mut raw: Vec<(SetName, Matrix)> = if let [whole] = &chunks[..] {
            let embedded = embed(&model, method, batch, whole.clone(), &device, &mut Pass::Train(&mut updates));
            let raw = to_host(&embedded);
            kept = Some(embedded);
            raw
        } else {
            // Off the graph, which would keep the activations.
            let device = device.clone().inner();
            let pieces = chunks
                .iter()
                .map(|rows| to_host(&embed(&model, method, batch, rows.clone(), &device, &mut Pass::Batch)));
            stack(pieces.collect())
        };
        raw.extend(method.keys(batch, chunk));

        // z [B, dim] of each set, over all ranks
        let unit = |(name, h): (SetName, Matrix)| (name, UnitRows::new(comm.all_gather(h)));
        let sets = EmbeddingSets::new(raw.into_iter().map(unit).collect());
        let out = method.loss().forward(&LossInput {
            sets: &sets,
            ids: &batch.ids,
            labels: batch.labels.as_deref(),
            queue: method.queue(),
            large_views: batch.crops[0].count,
            ours: batch.ours.clone(),
            state,
            epoch: batch.epoch,
        })?;
        if !out.loss.is_finite() {
            return Err(LossError::NonFiniteLoss);
        }

        // ∂L/∂h [share, dim]
        let mut dh = Vec::with_capacity(out.grads.len());
        for (name, dz) in out.grads {
            dh.push((name, sets.get(name)?.backward(batch.ours.start, dz)));
        }
        let (mut grads, mut modules) = (NamedGrads::default(), NamedGrads::default());
        for rows in chunks {
            let embedded = kept
                .take()
                .unwrap_or_else(|| embed(&model, method, batch, rows.clone(), &device, &mut Pass::Train(&mut updates)));
            let mut gradients = backward(embedded, &dh, rows, &device);
            grads.add(NamedGrads::collect(&model, &mut gradients));
            modules.add(method.collect(&mut gradients));
        }
        let reduce = |grads: NamedGrads| grads.map(|grad| comm.all_reduce_tensor(grad));
        let (grads, modules) = (reduce(grads), reduce(modules));

        let model = apply_buffers(optimizer.step(model, grads, lr), &mut updates);
        state.commit(out.update);
        let parameters = out.parameter_grads;
        method.after_step(Done { model: &model, optimizer, sets: &sets, modules, buffers: updates, parameters, lr });
        Ok((model, StepOutput { loss: out.loss, objective: out.objective, sets }))
    })
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
    let group = (batch.ids.len() / method.norm_groups()).min(rows.len());
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
        let companions = method.companions(model, batch, rows, &sets, pass);
        sets.extend(companions);
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

/// The gradients of Σ h·sg(∂L/∂h) over all sets that have one.
fn backward(embedded: Embedded, dh: &[(SetName, Matrix)], rows: Range<usize>, device: &Device) -> Gradients {
    let term = |(name, dh): &(SetName, Matrix)| {
        let (_, h) = embedded.iter().find(|(n, _)| n == name).expect("a gradient belongs to a set");
        let values: Vec<f32> = dh.slice(s![rows.clone(), ..]).iter().copied().collect();
        let dh = Tensor::<2>::from_data(TensorData::new(values, h.dims()), device);
        (h.clone() * dh).sum()
    };
    dh.iter().map(term).reduce(|sum, term| sum + term).expect("a loss has a gradient").backward()
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
    let matrix = |(name, h): &(SetName, Tensor<2>)| {
        let (dims, values) = (h.dims(), h.clone().inner().into_data().try_to_vec::<f32>().expect("embeddings are f32"));
        (*name, Matrix::from_shape_vec(dims, values).expect("as many values as the shape says"))
    };
    embedded.iter().map(matrix).collect()
}
