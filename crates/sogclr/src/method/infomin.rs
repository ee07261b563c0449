//! InfoMin: MoCo with augmentation strong enough to leave the views little in common, and a second branch whose query
//! is made of shuffled tiles; ½ of the loss each.
//!
//! ```text
//! t₁ … t₉ = tiles of another crop of the image, a 3×3 grid shuffled, without colour operations
//! q = h/‖h‖, h = head(encoder(x₁))                        [B, d]; batch norm in groups, as in MoCo
//! r = h/‖h‖, h = whole(tile(encoder(t₁)), …, tile(encoder(t₉)))      tile an MLP, whole linear: the jigsaw's own head
//! k = h/‖h‖, h = follower(x₂)                             [B, d], no gradient; groups dealt anew in every step
//! ℓ(q) = 1/B Σᵢ [−qᵢ·kᵢ/τ + ln(exp(qᵢ·kᵢ/τ) + Σⱼ exp(qᵢ·Qⱼ/τ))]     Q [K, d], keys of earlier batches, no gradient
//! L = ½ℓ(q) + ½ℓ(r)
//! update encoder, head and the jigsaw's head by ∇L
//! follower ← m·follower + (1 − m)·(encoder, head)
//! Q ← k in place of the oldest rows                       at the start random directions
//! ```

use super::moco::{QueuedKeys, adjust_moco, check_groups, default_groups};
use super::momentum::{check_momentum, default_momentum};
use super::own::OwnModule;
use super::queue::{check_queue, default_queue};
use super::{BuildContext, Method, Recipe, Registered, Setting, Spec, StepEnd, check_temperature};
use crate::augment::{Jigsaw, Preset, RandAugment};
use crate::batch::Batch;
use crate::check::Problem;
use crate::comm::Group;
use crate::encoder::{Compute, Linear, Model, Network, Pass};
use crate::loss::{KeyNce, Loss, Negatives, SetName};
use crate::math::Matrix;
use crate::optim::NamedGrads;
use crate::params::{NamedTensors, ParamError};
use burn::module::Module;
use burn::tensor::{Gradients, Tensor, activation::relu};
use ndarray::ArrayView2;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const JIGSAW: Jigsaw = Jigsaw { grid: 3, scale: [0.6, 1.0] };

/// InfoMin's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InfominConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// Keys of earlier batches that serve as negatives; at most as many as there are images.
    pub queue: usize,
    /// m of the momentum encoder.
    pub momentum: f64,
    /// Groups of the batch that batch norm sees one at a time; must divide the batch.
    pub norm_groups: usize,
}

impl Registered for InfominConfig {
    fn defaults(setting: &Setting) -> Self {
        Self {
            temperature: 0.15,
            queue: default_queue(setting),
            momentum: default_momentum(setting),
            norm_groups: default_groups(setting.batch),
        }
    }
}

impl Spec for InfominConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        check_momentum(self.momentum)
    }

    fn check_setting(&self, samples: usize, batch: usize) -> Result<(), Problem> {
        check_queue(self.queue, samples)?;
        check_groups(self.norm_groups, batch)
    }

    fn is_two_view(&self) -> bool {
        true
    }

    fn needs_jigsaw(&self) -> bool {
        true
    }

    fn norm_groups(&self) -> usize {
        self.norm_groups
    }

    fn preset(&self, setting: &Setting) -> Option<Preset> {
        (!setting.is_small && !setting.is_grey).then_some(Preset::Infomin)
    }

    fn adjust(&self, setting: &Setting, recipe: &mut Recipe) {
        adjust_moco(setting, recipe);
        // Deviation: small images keep the milder preset of the other methods, and half of RandAugment. With InfoMin's own the
        // queries collapse: 39 instead of 44 % after six epochs of CIFAR-10.
        let usual = if setting.is_small { RandAugment::gentle() } else { RandAugment::infomin() };
        recipe.augment.rand_augment.get_or_insert(usual);
        recipe.augment.jigsaw = Some(JIGSAW);
    }

    fn loss(&self) -> Box<dyn Loss> {
        let queries = &[(SetName::View(0), 0.5), (SetName::Jigsaw, 0.5)];
        Box::new(KeyNce { temperature: self.temperature, alpha: None, negatives: Negatives::Queue, queries })
    }

    fn build(&self, context: &BuildContext) -> Box<dyn Method> {
        let own = Own {
            jigsaw: JigsawHead::new(context.model.encoder.feature_dim(), context.model.output(), &context.compute),
        };
        Box::new(Infomin {
            loss: self.loss(),
            keys: QueuedKeys::new(context, self.momentum, self.queue, self.norm_groups),
            own: OwnModule::new(own, context.seed),
        })
    }
}

/// Tiles to one embedding: an MLP on each, then one linear layer over all of them in their shuffled order.
#[derive(Module, Debug)]
struct JigsawHead {
    hidden: Linear,
    tile: Linear,
    whole: Linear,
}

impl JigsawHead {
    fn new(features: usize, output: usize, compute: &Compute) -> Self {
        Self {
            hidden: Linear::new(features, features, compute).with_bias(),
            tile: Linear::new(features, output, compute).with_bias(),
            whole: Linear::new(JIGSAW.tiles() * output, output, compute).with_bias(),
        }
    }

    /// features `[tiles·N, dim]`, tile-major → `[N, output]`
    fn forward(&self, features: Tensor<2>) -> Tensor<2> {
        let tiles = self.tile.forward(relu(self.hidden.forward(features)));
        let [rows, _] = tiles.dims();
        let samples = rows / JIGSAW.tiles();
        let places = (0..JIGSAW.tiles()).map(|tile| tiles.clone().narrow(0, tile * samples, samples)).collect();
        self.whole.forward(Tensor::cat(places, 1))
    }
}

/// Gives the head's parameters their names.
#[derive(Module, Debug)]
struct Own {
    jigsaw: JigsawHead,
}

struct Infomin {
    loss: Box<dyn Loss>,
    keys: QueuedKeys,
    own: OwnModule<Own>,
}

impl Method for Infomin {
    fn loss(&self) -> &dyn Loss {
        self.loss.as_ref()
    }

    fn query_views(&self, _: usize) -> usize {
        1
    }

    fn norm_groups(&self) -> usize {
        self.keys.groups()
    }

    fn keys(&self, batch: &Batch, chunk: usize, group: &Group) -> Vec<(SetName, Matrix)> {
        self.keys.embed(batch, chunk, group)
    }

    fn further_sets(
        &self,
        model: &Model,
        batch: &Batch,
        rows: &[usize],
        views: &[(SetName, Tensor<2>)],
        pass: &mut Pass,
    ) -> Vec<(SetName, Tensor<2>)> {
        let tiles = batch.tiles.as_ref().expect("InfoMin's augmentation makes tiles");
        let x = tiles.tensor(0..tiles.count, rows, &views[0].1.device());
        vec![(SetName::Jigsaw, self.own.get().jigsaw.forward(model.encoder.forward(x, pass)))]
    }

    fn queue(&self) -> Option<ArrayView2<'_, f32>> {
        Some(self.keys.queue())
    }

    fn collect(&self, gradients: &mut Gradients) -> NamedGrads {
        self.own.collect(gradients)
    }

    fn after_step(&mut self, end: StepEnd) {
        self.keys.after_step(&end);
        self.own.update(end);
    }

    fn starts_from(&mut self, model: &Model) -> Result<(), ParamError> {
        self.keys.starts_from(model)
    }

    fn export(&self) -> NamedTensors {
        let mut tensors = self.keys.export();
        self.own.export(&mut tensors);
        tensors
    }

    fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        self.keys.import(tensors)?;
        self.own.import(tensors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::AugmentConfig;
    use crate::data::Modality;
    use crate::encoder::HeadConfig;
    use crate::optim::{LearningRate, OptimizerConfig, PaperMomentum, Scaling};
    use crate::params::export;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn small_images_get_gentler_views_unless_the_user_chooses_the_preset() {
        let of = |is_small: bool, given: Option<Preset>| {
            let setting =
                Setting { is_small, is_grey: false, modality: Modality::Images, samples: 64, batch: 8, epochs: 1 };
            let infomin = InfominConfig::defaults(&setting);
            let preset = given.or(infomin.preset(&setting)).unwrap_or(Preset::Cifar);
            let mut recipe = Recipe {
                augment: AugmentConfig::preset(preset, 32),
                head: HeadConfig::for_features(8),
                optimizer: OptimizerConfig::Momentum(PaperMomentum { beta: 0.9 }),
                learning_rate: LearningRate {
                    base: 1.0,
                    scaling: Scaling::None,
                    warmup_epochs: 0.0,
                    warmup_steps: None,
                },
            };
            infomin.adjust(&setting, &mut recipe);
            let operations = recipe.augment.rand_augment.unwrap();
            (preset, operations.count, operations.magnitude)
        };
        assert_eq!(of(true, None), (Preset::Cifar, 1, 5.0));
        assert_eq!(of(false, None), (Preset::Infomin, 2, 10.0));
        assert_eq!(of(true, Some(Preset::Infomin)), (Preset::Infomin, 2, 10.0));
    }

    /// whole·[tile(relu(hidden(x₀))), …, tile(relu(hidden(x₈)))], tile after tile of one sample.
    #[test]
    fn the_jigsaw_head_joins_the_tiles_of_one_sample() {
        let (features, output, samples) = (3, 2, 2);
        let own = OwnModule::new(Own { jigsaw: JigsawHead::new(features, output, &Compute::cpu()) }, 5);
        let tensors = export(own.get());
        let x: Vec<f32> = (0..9 * samples * features).map(|i| ((i * 37) % 19) as f32 / 9.0 - 1.0).collect();
        let input = Tensor::from_data(TensorData::new(x.clone(), [9 * samples, features]), &Device::flex());
        let ours = own.get().jigsaw.forward(input).into_data().try_to_vec::<f32>().unwrap();
        let linear = |name: &str, x: &[f64]| -> Vec<f64> {
            let weight = &tensors[&format!("jigsaw.{name}.weight")].values;
            weight.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
        };
        for sample in 0..samples {
            let joined: Vec<f64> = (0..9)
                .flat_map(|tile| {
                    let row = &x[(tile * samples + sample) * features..][..features];
                    let hidden = linear("hidden", &row.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
                    linear("tile", &hidden.iter().map(|v| v.max(0.0)).collect::<Vec<_>>())
                })
                .collect();
            for (ours, want) in ours[sample * output..].iter().zip(linear("whole", &joined)) {
                assert!((f64::from(*ours) - want).abs() < 1e-5, "sample {sample}: {ours} vs {want}");
            }
        }
    }
}
