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
use crate::method::Method;
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
    let raw: Vec<Tensor<2>> = crops.iter().map(|x| model.forward(x.clone(), &mut Pass::Train(&mut updates))).collect();
    let h = if raw.len() == 1 { raw.into_iter().next().expect("one group") } else { Tensor::cat(raw, 0) };
    let local = host_matrix(&h);

    // z [B, dim] for each view, over all ranks
    let mut sets: Vec<(SetName, UnitRows)> = (0..augment.view_count())
        .map(|view| {
            let rows = local.slice(ndarray::s![view * share..(view + 1) * share, ..]).to_owned();
            (SetName::View(view), UnitRows::new(comm.all_gather(rows)))
        })
        .collect();
    for (name, rows) in method.companion_sets(&model, &crops) {
        sets.push((name, UnitRows::new(comm.all_gather(rows))));
    }
    let sets = EmbeddingSets::new(sets);
    let out = method.loss().forward(&LossInput {
        sets: &sets,
        ids: &batch.ids,
        labels: None,
        large_views: augment.views[0].count,
        ours: batch.ours.clone(),
        state,
        epoch: batch.epoch,
    })?;

    // ∂L/∂h, row for row with h
    let mut dh = Matrix::zeros(local.dim());
    for (name, dz) in out.grads {
        if let SetName::View(view) = name {
            let grad = sets.get(name)?.backward(batch.ours.start, dz);
            dh.slice_mut(ndarray::s![view * share..(view + 1) * share, ..]).assign(&grad);
        }
    }
    let dh = Tensor::<2>::from_data(TensorData::new(dh.into_raw_vec_and_offset().0, h.dims()), &device);
    let gradients = (h * dh).sum().backward();
    let grads = NamedGrads::collect(&model, gradients).map(|grad| comm.all_reduce_tensor(grad));

    let model = apply_buffers(optimizer.step(model, grads, lr), updates);
    state.commit(out.update);
    method.after_step(&model);
    Ok(StepOutput { model, loss: out.loss, objective: out.objective })
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
