//! SogCLR's loss on a burn model of one's own, with one's own loop: no images, no run folder.
//!
//! cargo run --release -p sogclr --example own_model

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData, activation::relu};
use sogclr::loss::{EmbeddingSets, Gamma, Loss, LossInput, SetName, SogClr};
use sogclr::optim::{NamedGrads, Optimizer, Sgd, pull_back};
use sogclr::params::{initialise, to_matrix};
use sogclr::state::SampleState;

const SAMPLES: usize = 64;
const BATCH: usize = 16;

/// Two layers from 10 measurements to 8 values.
#[derive(Module, Debug)]
struct Mlp {
    first: Param<Tensor<2>>,
    second: Param<Tensor<2>>,
}

impl Mlp {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        relu(x.matmul(self.first.val())).matmul(self.second.val())
    }
}

/// Two noisy measurements of each of the samples `ids`.
fn measure(ids: &[usize], step: usize, view: usize, device: &Device) -> Tensor<2> {
    let value =
        |id: usize, k: usize| ((id * 7 + k * 3) as f32).sin() + 0.3 * ((id + k * 5 + step * 11 + view) as f32).cos();
    let values: Vec<f32> = ids.iter().flat_map(|&id| (0..10).map(move |k| value(id, k))).collect();
    Tensor::from_data(TensorData::new(values, [ids.len(), 10]), device)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    let zeros = |rows, columns| Param::from_tensor(Tensor::zeros([rows, columns], &device));
    let mut model = initialise(Mlp { first: zeros(10, 32), second: zeros(32, 8) }, 0);
    let loss = SogClr::new(0.2, Gamma::Constant { value: 0.8 });
    let mut state = SampleState::new(SAMPLES, loss.columns()); // u of every sample
    let mut optimizer = Optimizer::new(Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }.into());
    for step in 0..200 {
        let ids: Vec<usize> = (0..BATCH).map(|k| (step * BATCH + k * 5) % SAMPLES).collect();
        let [a, b] = [0, 1].map(|view| model.forward(measure(&ids, step, view, &device)));
        let sets = [&a, &b].map(|h| to_matrix(h.clone().inner()));
        let sets = EmbeddingSets::new([SetName::View(0), SetName::View(1)].into_iter().zip(sets).collect());
        let out = loss.forward(&LossInput::new(&sets, &ids, &state))?;
        let grads = [a, b].into_iter().zip(out.grads.into_iter().map(|(_, grad)| grad));
        let grads = NamedGrads::collect(&model, &mut pull_back(grads));
        model = optimizer.step(model, grads, 0.05);
        state.commit(out.update);
        if step % 50 == 49 {
            println!("step {}: objective {:.4}", step + 1, out.objective.unwrap_or_default());
        }
    }
    Ok(())
}
