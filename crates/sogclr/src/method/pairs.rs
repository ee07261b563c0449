//! What methods of image–text pairs share: τ and the optimiser.

use super::{Recipe, check_temperature};
use crate::check::Problem;
use crate::optim::{AdamW, LearningRate, OptimizerConfig, Scaling};

/// The paper's τ.
pub(super) const TEMPERATURE: f64 = 0.07;

/// AdamW with the paper's decay and learning rate, CLIP's moments for ResNets. A larger ε would slow SogCLR down, whose
/// gradient is τ times that of CLIP's loss.
pub(super) fn adjust_pairs(recipe: &mut Recipe) {
    recipe.optimizer = OptimizerConfig::Adamw(AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 });
    recipe.learning_rate = LearningRate { base: 1e-3, scaling: Scaling::None, ..recipe.learning_rate };
}

/// A τ that is learned must start within what it is bounded to.
pub(super) fn check_learned(temperature: f64, lowest: f64) -> Result<(), Problem> {
    check_temperature(temperature)?;
    if temperature >= lowest {
        return Ok(());
    }
    let problem = format!("is {temperature}; where it is learned it starts from {lowest} or more");
    Err(Problem::new("method.temperature", problem))
}
