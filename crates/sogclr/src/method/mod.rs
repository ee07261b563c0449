//! Methods by name: a loss, and whatever else it trains with. Momentum encoder, queue and predictor are components that
//! methods compose.
//!
//! Adding one: a new file with its configuration and [`Spec`], and one line in `methods!`.

mod barlow_twins;
mod byol;
mod clip;
mod dcl;
mod debiased;
mod external;
mod fastclip;
mod flatnce;
mod infomin;
mod isogclr;
mod isogclr_pairs;
mod learned;
mod moco;
mod momentum;
mod nnclr;
mod own;
mod pairs;
mod predictor;
mod queue;
mod siglip;
mod simclr;
mod simo;
mod simsiam;
mod sogclr;
mod sogclr_pairs;
mod supcon;
mod vicreg;

pub use barlow_twins::BarlowTwinsConfig;
pub use byol::ByolConfig;
pub use clip::ClipConfig;
pub use dcl::DclConfig;
pub use debiased::DebiasedConfig;
pub use external::External;
pub use fastclip::FastclipConfig;
pub use flatnce::FlatnceConfig;
pub use infomin::InfominConfig;
pub use isogclr::IsogclrConfig;
pub use isogclr_pairs::IsogclrPairsConfig;
pub use moco::MocoConfig;
pub use momentum::{MomentumEncoder, cosine_momentum};
pub use nnclr::NnclrConfig;
pub use own::OwnModule;
pub use predictor::Predictor;
pub use queue::FeatureQueue;
pub use siglip::SiglipConfig;
pub use simclr::SimclrConfig;
pub use simo::SimoConfig;
pub use simsiam::SimsiamConfig;
pub use sogclr::SogclrConfig;
pub use sogclr_pairs::SogclrPairsConfig;
pub use supcon::SupconConfig;
pub use vicreg::VicregConfig;

use crate::augment::{AugmentConfig, Preset};
use crate::batch::Batch;
use crate::check::{Problem, require};
use crate::comm::Group;
use crate::data::Modality;
use crate::encoder::{BufferUpdates, Compute, HeadConfig, Model, ModelConfig, Pass};
use crate::loss::{EmbeddingSets, Loss, Progress, SetName};
use crate::math::Matrix;
use crate::optim::{LearningRate, NamedGrads, Optimizer, OptimizerConfig};
use crate::params::{NamedTensors, ParamError};
use burn::tensor::{Gradients, Tensor};
use ndarray::ArrayView2;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The configuration of every method, told apart by `kind`.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:literal $variant:ident($config:ty),)*) => {
        /// The method and its hyper-parameters.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
        pub enum MethodConfig {
            $($(#[$doc])* $variant($config),)*
            /// A method that a program of its own brings to the library; only that program can train and resume it.
            External(External),
        }

        $(impl From<$config> for MethodConfig {
            fn from(config: $config) -> Self {
                Self::$variant(config)
            }
        })*

        impl MethodConfig {
            /// The names of all methods of this crate.
            pub const NAMES: &[&str] = &[$($name),*];

            /// The method of exactly this name, with its defaults for this data.
            fn exactly(name: &str, setting: &Setting) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant(<$config as Registered>::defaults(setting))),)*
                    _ => None,
                }
            }

            /// The method's name.
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$variant(_) => $name,)*
                    Self::External(external) => external.name(),
                }
            }

            /// What the method is and how it is built.
            pub fn spec(&self) -> &dyn Spec {
                match self {
                    $(Self::$variant(config) => config,)*
                    Self::External(external) => external.spec(),
                }
            }
        }
    };
}

methods! {
    /// One moving average for each sample: small batches, global objective.
    "sogclr" Sogclr(sogclr::SogclrConfig),
    /// NT-Xent, the baseline that wants large batches.
    "simclr" Simclr(simclr::SimclrConfig),
    /// NT-Xent without the positive in the denominator; SogCLR without memory.
    "dcl" Dcl(dcl::DclConfig),
    /// FlatNCE: DCL's gradient.
    "flatnce" Flatnce(flatnce::FlatnceConfig),
    /// NT-Xent with EqCo's margin, few negatives act like many; with a momentum encoder.
    "simo" Simo(simo::SimoConfig),
    /// MoCo v2: momentum encoder and a queue of negatives.
    "moco" Moco(moco::MocoConfig),
    /// Nearest neighbours in a support set as positives.
    "nnclr" Nnclr(nnclr::NnclrConfig),
    /// MoCo with stronger augmentation and a jigsaw.
    "infomin" Infomin(infomin::InfominConfig),
    /// SogCLR with a learned temperature for each sample.
    "isogclr" Isogclr(isogclr::IsogclrConfig),
    /// NT-Xent corrected for false negatives.
    "debiased" Debiased(debiased::DebiasedConfig),
    /// Supervised contrastive loss; needs labels.
    "supcon" Supcon(supcon::SupconConfig),
    /// BYOL: predicts what a momentum encoder sees in the other view; nothing is contrasted.
    "byol" Byol(byol::ByolConfig),
    /// SimSiam: BYOL without momentum; the gradient is stopped instead.
    "simsiam" Simsiam(simsiam::SimsiamConfig),
    /// Barlow Twins: the dimensions of two views correlate one by one.
    "barlow-twins" BarlowTwins(barlow_twins::BarlowTwinsConfig),
    /// VICReg: views agree, dimensions vary, and no two together.
    "vicreg" Vicreg(vicreg::VicregConfig),
    /// CLIP's InfoNCE on image–text pairs, the baseline that wants large batches.
    "clip" Clip(clip::ClipConfig),
    /// SogCLR on image–text pairs: one moving average for each image and one for each text.
    "sogclr-pairs" SogclrPairs(sogclr_pairs::SogclrPairsConfig),
    /// iSogCLR on image–text pairs: a learned temperature for each image and each text.
    "isogclr-pairs" IsogclrPairs(isogclr_pairs::IsogclrPairsConfig),
    /// FastCLIP on image–text pairs: v3 with a learned global temperature, or v1 and v2.
    "fastclip" Fastclip(fastclip::FastclipConfig),
    /// SigLIP on image–text pairs: every pair is a question of its own.
    "siglip" Siglip(siglip::SiglipConfig),
}

impl MethodConfig {
    /// What distinguishes the method of image–text pairs where one of images alone has the same name.
    const PAIRS: &str = "-pairs";

    /// The method's defaults for this data, or what is wrong with the name. `sogclr` and `isogclr` are also the names of
    /// their forms for image–text pairs.
    pub fn named(name: &str, setting: &Setting) -> Result<Self, String> {
        let of_pairs = (setting.modality == Modality::Pairs)
            .then(|| Self::exactly(&format!("{name}{}", Self::PAIRS), setting))
            .flatten();
        let fits = |method: &Self| method.spec().modality() == setting.modality;
        let found = of_pairs.or_else(|| Self::exactly(name, setting));
        match found {
            Some(method) if fits(&method) => Ok(method),
            found => {
                let all = Self::NAMES.iter().filter(|name| Self::exactly(name, setting).is_some_and(|m| fits(&m)));
                let known = all.map(|name| name.trim_end_matches(Self::PAIRS)).collect::<Vec<_>>().join(", ");
                Err(match (found.is_some(), setting.modality) {
                    (true, Modality::Pairs) => {
                        format!("{name} is for images alone; methods of image–text pairs are {known}")
                    }
                    (true, Modality::Images) => {
                        format!("{name} is for image–text pairs, which data.pairs names; methods of images are {known}")
                    }
                    (false, _) => format!("known methods are {known}"),
                })
            }
        }
    }

    /// A method of another program, trained by `spec`; runs call it `name`.
    pub fn external(name: &str, spec: impl Spec + 'static) -> Self {
        Self::External(External::new(name, std::sync::Arc::new(spec)))
    }
}

/// What a method's defaults may depend on.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Images up to about 64 pixels, such as CIFAR's.
    pub is_small: bool,
    /// Images of one channel.
    pub is_grey: bool,
    /// Images alone, or with texts.
    pub modality: Modality,
    /// Training images.
    pub samples: usize,
    /// Images in a step.
    pub batch: usize,
    /// Passes over the data.
    pub epochs: usize,
}

/// Defaults of what stands around the method, which it may change to its authors' choices.
pub struct Recipe {
    /// How views are made.
    pub augment: AugmentConfig,
    /// The projection head.
    pub head: HeadConfig,
    /// How gradients become updates.
    pub optimizer: OptimizerConfig,
    /// How fast.
    pub learning_rate: LearningRate,
}

/// What a method is built with.
pub struct BuildContext<'a> {
    /// The model that it trains.
    pub model: &'a ModelConfig,
    /// Seed of every random choice.
    pub seed: u64,
    /// Where it computes, with autodiff.
    pub compute: Compute,
}

/// A method's configuration: what it needs, what it checks, and how to build it. A method that is a loss and nothing more
/// says only [`Spec::loss`].
pub trait Spec: Send + Sync {
    /// Refuses impossible values.
    fn check(&self) -> Result<(), Problem> {
        Ok(())
    }

    /// Refuses what does not fit this data and batch.
    fn check_setting(&self, _samples: usize, _batch: usize) -> Result<(), Problem> {
        Ok(())
    }

    /// What the method is for.
    fn modality(&self) -> Modality {
        Modality::Images
    }

    /// τ at the start, where the method has one.
    fn temperature(&self) -> Option<f64> {
        None
    }

    /// Whether it learns from classes.
    fn needs_labels(&self) -> bool {
        false
    }

    /// Whether exactly two views of one size are needed.
    fn is_two_view(&self) -> bool {
        false
    }

    /// Whether the augmentation has to make a jigsaw.
    fn needs_jigsaw(&self) -> bool {
        false
    }

    /// Into how many groups a batch is split, each normalised by itself.
    fn norm_groups(&self) -> usize {
        1
    }

    /// The augmentation that the authors use, where it is not that of all methods.
    fn preset(&self, _setting: &Setting) -> Option<Preset> {
        (self.modality() == Modality::Pairs).then_some(Preset::Clip)
    }

    /// Changes the defaults of what stands around the method to its authors' choices.
    fn adjust(&self, _setting: &Setting, recipe: &mut Recipe) {
        if self.modality() == Modality::Pairs {
            pairs::adjust_pairs(recipe);
        }
    }

    /// The loss.
    fn loss(&self) -> Box<dyn Loss>;

    /// The loss, and whatever else it trains with.
    fn build(&self, _context: &BuildContext) -> Box<dyn Method> {
        Box::new(LossOnly(self.loss()))
    }
}

/// A method of this crate, which has defaults for every setting.
pub trait Registered: Spec {
    /// What its authors use, or what suits this data.
    fn defaults(setting: &Setting) -> Self
    where
        Self: Sized;
}

/// A method in training.
pub trait Method: Send + Sync {
    /// The loss as it is now.
    fn loss(&self) -> &dyn Loss;

    /// How many of the views, from the first, go through the model.
    fn query_views(&self, views: usize) -> usize {
        views
    }

    /// Into how many groups a batch is split, each normalised by itself.
    fn norm_groups(&self) -> usize {
        1
    }

    /// Embedding sets without gradient for this rank's share of the batch, such as momentum keys. At most `chunk` samples
    /// of all ranks go through a network at once.
    fn keys(&self, _batch: &Batch, _chunk: usize, _group: &Group) -> Vec<(SetName, Matrix)> {
        Vec::new()
    }

    /// Further sets for the samples `rows`, on the autodiff graph: predictions from the views' embeddings, or what else
    /// the model makes of the batch.
    fn further_sets(
        &self,
        _model: &Model,
        _batch: &Batch,
        _rows: &[usize],
        _views: &[(SetName, Tensor<2>)],
        _pass: &mut Pass,
    ) -> Vec<(SetName, Tensor<2>)> {
        Vec::new()
    }

    /// Features of earlier batches that the loss looks at.
    fn queue(&self) -> Option<ArrayView2<'_, f32>> {
        None
    }

    /// Takes the gradients of the method's own modules out of the backward pass.
    fn collect(&self, _gradients: &mut Gradients) -> NamedGrads {
        NamedGrads::default()
    }

    /// Updates the method's own modules and the loss's own parameters, then whatever follows the new model.
    fn after_step(&mut self, _end: StepEnd) {}

    /// Training starts from weights that were not drawn: whatever copies the model has to take them.
    fn starts_from(&mut self, _model: &Model) -> Result<(), ParamError> {
        Ok(())
    }

    /// The method's own tensors for the checkpoint.
    fn export(&self) -> NamedTensors {
        NamedTensors::new()
    }

    /// Restores what [`Method::export`] gave.
    fn import(&mut self, _tensors: &NamedTensors) -> Result<(), ParamError> {
        Ok(())
    }
}

/// A step whose update of the model is done.
pub struct StepEnd<'a> {
    /// The model after the update.
    pub model: &'a Model,
    /// What updates the method's own modules.
    pub optimizer: &'a mut Optimizer,
    /// What was contrasted, over all ranks.
    pub sets: &'a EmbeddingSets,
    /// Gradients of the method's modules, summed over the ranks.
    pub modules: NamedGrads,
    /// What the batch norm of the method's modules saw.
    pub buffers: BufferUpdates,
    /// Gradients of the loss's own parameters.
    pub parameters: Vec<(&'static str, f64)>,
    /// The learning rate of this step.
    pub lr: f64,
    /// The largest learning rate of the run.
    pub peak_lr: f64,
    /// How far the run is.
    pub at: Progress,
}

/// A method that is its loss and nothing more.
struct LossOnly(Box<dyn Loss>);

impl Method for LossOnly {
    fn loss(&self) -> &dyn Loss {
        self.0.as_ref()
    }
}

/// Three layers as wide as the output, which has no batch norm: the heads of Barlow Twins and VICReg.
fn wide_head(setting: &Setting, recipe: &mut Recipe) {
    let width = if setting.is_small { 512 } else { 8192 };
    recipe.head = HeadConfig { layers: 3, hidden: width, output: width, norm: true, norm_output: false };
}

fn check_temperature(temperature: f64) -> Result<(), Problem> {
    require((0.005..=10.0).contains(&temperature), "method.temperature", || {
        format!("is {temperature}; it must lie between 0.005 and 10 (try 0.1)")
    })
}
