//! A module that belongs to a method and is trained with the model.

use super::StepEnd;
use crate::encoder::apply_buffers;
use crate::optim::NamedGrads;
use crate::params::{NamedTensors, ParamError, export, import, initialise};
use burn::module::Module;
use burn::tensor::Gradients;

/// A module that the run's optimiser trains beside the model.
pub struct OwnModule<M> {
    /// `None` only while the optimiser owns it.
    module: Option<M>,
}

impl<M: Module> OwnModule<M> {
    /// `module` with weights that `seed` draws by their names.
    pub fn new(module: M, seed: u64) -> Self {
        Self { module: Some(initialise(module, seed)) }
    }

    /// The module as it is now.
    pub fn get(&self) -> &M {
        self.module.as_ref().expect("between updates")
    }

    /// Replaces the module by what `change` makes of it.
    pub fn map(&mut self, change: impl FnOnce(M) -> M) {
        self.module = self.module.take().map(change);
    }

    /// Takes its gradients out of a backward pass.
    pub fn collect(&self, gradients: &mut Gradients) -> NamedGrads {
        NamedGrads::collect(self.get(), gradients)
    }

    /// Applies its gradients, at the learning rate of `end`, and what its batch norm saw.
    pub fn update(&mut self, mut end: StepEnd) {
        let module = self.module.take().map(|module| end.optimizer.update_module(module, end.modules, end.lr));
        self.module = module.map(|module| apply_buffers(module, &mut end.buffers));
    }

    /// Adds its parameters and buffers to `tensors`.
    pub fn export(&self, tensors: &mut NamedTensors) {
        tensors.extend(export(self.get()));
    }

    /// Restores what [`OwnModule::export`] added; other tensors are passed over.
    pub fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        let mine = export(self.get());
        let found = tensors.iter().filter(|(name, _)| mine.contains_key(*name));
        let found = found.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        self.module = Some(import(self.get().clone(), &found)?);
        Ok(())
    }
}
