//! A module that belongs to a method and is trained with the model.

use super::StepEnd;
use crate::encoder::apply_buffers;
use crate::optim::NamedGrads;
use crate::params::{NamedTensors, ParamError, export, import, initialise};
use burn::module::Module;
use burn::tensor::Gradients;

pub struct OwnModule<M> {
    /// `None` only while the optimiser owns it.
    module: Option<M>,
}

impl<M: Module> OwnModule<M> {
    pub fn new(module: M, seed: u64) -> Self {
        Self { module: Some(initialise(module, seed)) }
    }

    pub fn get(&self) -> &M {
        self.module.as_ref().expect("between updates")
    }

    /// Replaces the module by what `change` makes of it.
    pub fn map(&mut self, change: impl FnOnce(M) -> M) {
        self.module = self.module.take().map(change);
    }

    pub fn collect(&self, gradients: &mut Gradients) -> NamedGrads {
        NamedGrads::collect(self.get(), gradients)
    }

    pub fn update(&mut self, mut end: StepEnd) {
        let module = self.module.take().map(|module| end.optimizer.update_module(module, end.modules, end.lr));
        self.module = module.map(|module| apply_buffers(module, &mut end.buffers));
    }

    pub fn export(&self, tensors: &mut NamedTensors) {
        tensors.extend(export(self.get()));
    }

    pub fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        let mine = export(self.get());
        let found = tensors.iter().filter(|(name, _)| mine.contains_key(*name));
        let found = found.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        self.module = Some(import(self.get().clone(), &found)?);
        Ok(())
    }
}
