//! A loss whose own parameters are learned, such as a temperature: by the run's optimiser, without decay.

use super::own::OwnModule;
use super::{Method, StepEnd};
use crate::loss::{BIAS, GLOBAL_TAU, LOG_SCALE, Loss};
use crate::params::{NamedTensors, ParamError};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

/// A loss that can be given other parameters.
pub(super) trait Adjustable: Loss {
    /// Share of the learning rate that its parameters move with.
    const RATE: f64 = 1.0;

    fn parameters(&self) -> Vec<(&'static str, f64)>;

    /// Takes a new value, within its bounds.
    fn set(&mut self, name: &str, value: f64);
}

/// Gives the parameters their names in the checkpoint.
#[derive(Module, Debug)]
struct Scalars {
    log_scale: Option<Param<Tensor<1>>>,
    bias: Option<Param<Tensor<1>>>,
    tau: Option<Param<Tensor<1>>>,
}

impl Scalars {
    fn new(values: &[(&str, f64)], device: &Device) -> Self {
        let param = |name: &str| {
            let (_, value) = values.iter().find(|(other, _)| *other == name)?;
            Some(Param::from_tensor(Tensor::full([1], *value as f32, device)))
        };
        Self { log_scale: param(LOG_SCALE), bias: param(BIAS), tau: param(GLOBAL_TAU) }
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &Param<Tensor<1>>)> {
        let all = [(LOG_SCALE, &self.log_scale), (BIAS, &self.bias), (GLOBAL_TAU, &self.tau)];
        all.into_iter().filter_map(|(name, param)| Some((name, param.as_ref()?)))
    }
}

pub(super) struct Learned<L> {
    loss: L,
    own: OwnModule<Scalars>,
    device: Device,
}

impl<L: Adjustable> Learned<L> {
    pub fn new(loss: L, device: &Device) -> Self {
        let own = OwnModule::new(Scalars::new(&loss.parameters(), device), 0);
        let mut learned = Self { loss, own, device: device.clone() };
        learned.settle();
        learned
    }

    /// Gives the loss the values of the module, rounded as in a checkpoint, and the module what they were bounded to.
    fn settle(&mut self) {
        let values: Vec<(&str, f64)> = self
            .own
            .get()
            .named()
            .map(|(name, param)| (name, f64::from(param.val().inner().into_scalar::<f32>())))
            .collect();
        values.iter().for_each(|(name, value)| self.loss.set(name, *value));
        let bounded = self.loss.parameters();
        let is_same = |(name, value): &(&str, f64)| values.iter().any(|(n, v)| n == name && *v as f32 == *value as f32);
        if !bounded.iter().all(is_same) {
            self.own.map(|_| Scalars::new(&bounded, &self.device));
        }
    }
}

impl<L: Adjustable> Method for Learned<L> {
    fn loss(&self) -> &dyn Loss {
        &self.loss
    }

    fn after_step(&mut self, mut end: StepEnd) {
        let device = self.device.clone().inner();
        for (name, grad) in &end.parameters {
            end.modules.insert(name, Tensor::full([1], *grad as f32, &device));
        }
        let lr = L::RATE * end.lr;
        self.own.update(StepEnd { lr, ..end });
        self.settle();
    }

    fn export(&self) -> NamedTensors {
        let mut tensors = NamedTensors::new();
        self.own.export(&mut tensors);
        tensors
    }

    fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        self.own.import(tensors)?;
        self.settle();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::{BufferUpdates, Compute, Model, ModelConfig, ResNetConfig, ResNetName};
    use crate::loss::{Clip, EmbeddingSets, Gamma, PairTemperature, Progress, SigLip, TwoWay};
    use crate::optim::{NamedGrads, Optimizer, OptimizerConfig, PaperMomentum};

    fn learned<L: Adjustable>(loss: L) -> Learned<L> {
        Learned::new(loss, &Device::flex().autodiff())
    }

    /// One step of plain gradient descent.
    fn descend<L: Adjustable>(learned: &mut Learned<L>, name: &'static str, gradient: f64, lr: f64) {
        let encoder = ResNetConfig { width: 0.0625, ..ResNetConfig::for_size(ResNetName::Resnet8, 8) }.into();
        let model = ModelConfig { encoder, head: None, text: None, image_size: 8, channels: 3 };
        learned.after_step(StepEnd {
            model: &Model::new(&model, 0, &Compute::cpu()),
            optimizer: &mut Optimizer::new(OptimizerConfig::Momentum(PaperMomentum { beta: 1.0 })),
            sets: &EmbeddingSets::new(Vec::new()),
            modules: NamedGrads::default(),
            buffers: BufferUpdates::default(),
            parameters: vec![(name, gradient)],
            lr,
            peak_lr: lr,
            at: Progress::default(),
        });
    }

    fn assert_restored<L: Adjustable>(saved: &Learned<L>, mut other: Learned<L>) {
        other.import(&saved.export()).unwrap();
        assert_eq!(other.loss.parameters(), saved.loss.parameters(), "to the last bit");
    }

    #[test]
    fn the_scale_moves_with_the_learning_rate_up_to_100() {
        let mut clip = learned(Clip { temperature: 0.5 });
        descend(&mut clip, LOG_SCALE, -2.0, 0.1);
        // ln(1/τ) ← ln 2 + 0.1·2
        assert!((clip.loss.temperature - 0.5 * (-0.2_f64).exp()).abs() < 1e-6, "{}", clip.loss.temperature);
        descend(&mut clip, LOG_SCALE, -100.0, 0.1);
        assert!((clip.loss.temperature - 0.01).abs() < 1e-8, "{}", clip.loss.temperature);
        assert_eq!(clip.export()[LOG_SCALE].values, [100_f64.ln() as f32]);
        assert_restored(&clip, learned(Clip { temperature: 0.5 }));
    }

    #[test]
    fn the_global_temperature_moves_with_a_fifth_of_the_rate_down_to_its_minimum() {
        let learned_tau = PairTemperature::Global { rho: 6.5 };
        let two_way = TwoWay { learned: learned_tau, ..TwoWay::new(0.07, Gamma::Constant { value: 0.8 }) };
        let mut fastclip = learned(two_way.clone());
        descend(&mut fastclip, GLOBAL_TAU, 0.5, 0.1);
        // τ ← 0.07 − 0.1/5·0.5
        assert!((fastclip.loss.temperature - 0.06).abs() < 1e-7, "{}", fastclip.loss.temperature);
        descend(&mut fastclip, GLOBAL_TAU, 100.0, 0.1);
        assert_eq!(fastclip.loss.temperature, 0.01);
        assert_eq!(fastclip.export()[GLOBAL_TAU].values, [0.01]);
        assert_restored(&fastclip, learned(two_way));
    }

    /// A run that is resumed before its first step begins as the one that was not.
    #[test]
    fn the_start_is_rounded_as_a_checkpoint_is() {
        for (temperature, bias) in [(0.07, -10.1), (0.3, -9.7), (0.01, -10.0)] {
            let other = learned(SigLip { temperature: 0.2, bias: 0.0 });
            assert_restored(&learned(SigLip { temperature, bias }), other);
        }
    }
}
