//! One training step: crops → encoder and head → gather → loss → backward → reduce → optimiser → state.
//!
//! The loss sees only embeddings on the host; its gradient goes back through the network as the gradient of
//! Σ h·sg(∂L/∂h). Gathering and reducing are the identity in one process.

use crate::augment::AugmentConfig;
use crate::batch::Batch;
use crate::comm::Collective;
use crate::encoder::{BufferUpdates, Model, Pass, apply_buffers};
use crate::loss::{EmbeddingSets, LossError, LossInput, SetName};
use crate::math::{Matrix, UnitRows};
use crate::method::{Method, OwnGradients};
use crate::optim::{NamedGrads, Optimizer};
use crate::state::SampleState;
use burn::tensor::{Device, Tensor, TensorData};

/// What one step gives: the new model and what to report.
pub struct StepOutput {
    pub model: Model,
    pub loss: f64,
    pub objective: f64,
}

/// Advances model, optimiser, per-sample state and method by one batch.
#[allow(clippy::too_many_arguments)] // the parts of a step, each used once
pub fn step(
    model: Model,
    optimizer: &mut Optimizer,
    method: &mut dyn Method,
    state: &mut SampleState,
    batch: Batch,
    augment: &AugmentConfig,
    comm: &dyn Collective,
    lr: f64,
) -> Result<StepOutput, LossError> {
    // On a thread of the pool: its parallel parts start at once, where another thread would have to be woken for each.
    rayon::scope(|_| {
        let device = first_device(&model);
        let share = batch.ours.len();
        let crops: Vec<Tensor<4>> = augment
            .views
            .iter()
            .zip(batch.crops)
            .map(|(group, pixels)| {
                let shape = [group.count * share, 3, group.size, group.size];
                Tensor::from_data(TensorData::new(pixels, shape), &device)
            })
            .collect();

        // h [views·share, dim]: one forward pass for each size of crop, all on the autodiff graph
        let mut updates = BufferUpdates::default();
        let raw: Vec<Tensor<2>> =
            crops.iter().map(|x| model.forward(x.clone(), &mut Pass::Train(&mut updates))).collect();
        let h = if raw.len() == 1 { raw.into_iter().next().expect("one group") } else { Tensor::cat(raw, 0) };
        let views: Vec<Tensor<2>> =
            (0..augment.view_count()).map(|view| h.clone().narrow(0, view * share, share)).collect();
        let companions = method.companions(&model, &crops, &views);
        let named: Vec<(SetName, Tensor<2>)> =
            views.into_iter().enumerate().map(|(k, view)| (SetName::View(k), view)).chain(companions).collect();

        // z [B, dim] of each set, over all ranks
        let unit = |(name, h): &(SetName, Tensor<2>)| (*name, UnitRows::new(comm.all_gather(host_matrix(h))));
        let sets = EmbeddingSets::new(named.iter().map(unit).collect());
        let out = method.loss().forward(&LossInput {
            sets: &sets,
            ids: &batch.ids,
            labels: batch.labels.as_deref(),
            large_views: augment.views[0].count,
            ours: batch.ours.clone(),
            state,
            epoch: batch.epoch,
        })?;
        if !out.loss.is_finite() {
            return Err(LossError::NonFiniteLoss);
        }

        // Σ h·sg(∂L/∂h) over all sets
        let mut surrogate: Option<Tensor<1>> = None;
        for (name, dz) in out.grads {
            let dh = sets.get(name)?.backward(batch.ours.start, dz);
            let (_, h) = named.iter().find(|(n, _)| *n == name).expect("a gradient belongs to a set");
            let dh = Tensor::<2>::from_data(TensorData::new(dh.into_raw_vec_and_offset().0, h.dims()), &device);
            let term = (h.clone() * dh).sum();
            surrogate = Some(match surrogate {
                Some(sum) => sum + term,
                None => term,
            });
        }
        let mut gradients = surrogate.expect("a loss has a gradient").backward();
        let reduce = |grads: NamedGrads| grads.map(|grad| comm.all_reduce_tensor(grad));
        let grads = reduce(NamedGrads::collect(&model, &mut gradients));
        let modules = reduce(method.collect(&mut gradients));

        let model = apply_buffers(optimizer.step(model, grads, lr), updates);
        state.commit(out.update);
        method.after_step(&model, optimizer, OwnGradients { modules, parameters: out.parameter_grads, lr });
        Ok(StepOutput { model, loss: out.loss, objective: out.objective })
    })
}

fn first_device(model: &Model) -> Device {
    use burn::module::Module;
    model.devices().first().cloned().expect("a model has parameters").autodiff()
}

fn host_matrix(tensor: &Tensor<2>) -> Matrix {
    let shape = tensor.dims();
    let values = tensor.clone().inner().into_data().try_to_vec::<f32>().expect("embeddings are f32");
    Matrix::from_shape_vec(shape, values).expect("as many values as the shape says")
}
