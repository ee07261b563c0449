//! Methods by name: a loss, and whatever else it trains with. Momentum encoder, queue and predictor are components that
//! methods compose.
//!
//! Adding one: a new file with its configuration and [`Spec`], and one line in `methods!`.

mod clip;
mod dcl;
mod debiased;
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
mod sogclr;
mod sogclr_pairs;
mod supcon;

pub use momentum::MomentumEncoder;
pub use predictor::Predictor;
pub use queue::FeatureQueue;

use crate::augment::{AugmentConfig, Preset};
use crate::batch::Batch;
use crate::encoder::{BufferUpdates, HeadConfig, Model, ModelConfig, NamedTensors, ParamError, Pass};
use crate::loss::{EmbeddingSets, Loss, SetName};
use crate::math::Matrix;
use crate::optim::{LearningRate, NamedGrads, Optimizer, OptimizerConfig};
use burn::tensor::{Device, Gradients, Tensor};
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
        }

        impl MethodConfig {
            pub const NAMES: &[&str] = &[$($name),*];

            /// The method of exactly this name, with its defaults for this data.
            fn exactly(name: &str, setting: &Setting) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant(<$config as Spec>::defaults(setting))),)*
                    _ => None,
                }
            }

            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }

            pub fn spec(&self) -> &dyn Spec {
                match self {
                    $(Self::$variant(config) => config,)*
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
        let of_pairs = setting.has_text.then(|| Self::exactly(&format!("{name}{}", Self::PAIRS), setting)).flatten();
        let found = of_pairs.or_else(|| Self::exactly(name, setting));
        match found {
            Some(method) if method.spec().pair_temperature().is_some() == setting.has_text => Ok(method),
            found => {
                let fits = |name: &&str| {
                    let method = Self::exactly(name, setting);
                    method.is_some_and(|method| method.spec().pair_temperature().is_some() == setting.has_text)
                };
                let known: Vec<&str> = Self::NAMES.iter().copied().filter(fits).collect();
                let known = known.iter().map(|name| name.trim_end_matches(Self::PAIRS)).collect::<Vec<_>>().join(", ");
                Err(match (found.is_some(), setting.has_text) {
                    (true, true) => format!("{name} is for images alone; methods of image–text pairs are {known}"),
                    (true, false) => format!("{name} is for image–text pairs (--pairs); methods of images are {known}"),
                    (false, _) => format!("known methods are {known}"),
                })
            }
        }
    }
}

/// What is wrong with a value, as (key, problem).
pub type Problem = (String, String);

/// What a method's defaults may depend on.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Images up to about 64 pixels, such as CIFAR's.
    pub is_small: bool,
    pub is_grey: bool,
    /// Image–text pairs.
    pub has_text: bool,
    pub samples: usize,
    pub batch: usize,
    pub epochs: usize,
}

/// Defaults of what stands around the method, which it may change to its authors' choices.
pub struct Surroundings {
    pub augment: AugmentConfig,
    pub head: HeadConfig,
    pub optimizer: OptimizerConfig,
    pub learning_rate: LearningRate,
}

/// What a method is built from.
pub struct Parts<'a> {
    pub model: &'a ModelConfig,
    pub seed: u64,
    /// The device that trains, with autodiff.
    pub device: Device,
}

/// A method's configuration: defaults, checks, and how to build it.
pub trait Spec {
    fn defaults(setting: &Setting) -> Self
    where
        Self: Sized;

    /// Refuses impossible values.
    fn check(&self) -> Result<(), Problem>;

    /// Refuses what does not fit this data and batch.
    fn check_setting(&self, _samples: usize, _batch: usize) -> Result<(), Problem> {
        Ok(())
    }

    /// τ at the start, of methods for image–text pairs; the others have none.
    fn pair_temperature(&self) -> Option<f64> {
        None
    }

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
        self.pair_temperature().map(|_| Preset::Clip)
    }

    fn suit(&self, _setting: &Setting, around: &mut Surroundings) {
        if self.pair_temperature().is_some() {
            pairs::suit_pairs(around);
        }
    }

    fn loss(&self) -> Box<dyn Loss>;

    fn build(&self, _parts: &Parts) -> Box<dyn Method> {
        Box::new(LossOnly(self.loss()))
    }
}

/// A method in training.
pub trait Method: Send + Sync {
    fn loss(&self) -> &dyn Loss;

    /// How many of the views, from the first, go through the model.
    fn query_views(&self, views: usize) -> usize {
        views
    }

    /// Into how many groups a batch is split, each normalised by itself.
    fn norm_groups(&self) -> usize {
        1
    }

    /// Embedding sets without gradient for the whole batch, such as momentum keys. At most `chunk` samples go through a
    /// network at once.
    fn keys(&self, _batch: &Batch, _chunk: usize) -> Vec<(SetName, Matrix)> {
        Vec::new()
    }

    /// Further sets for the samples `rows`, on the autodiff graph: predictions from the views' embeddings, or what else
    /// the model makes of the batch.
    fn companions(
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
    fn after_step(&mut self, _done: Done) {}

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
pub struct Done<'a> {
    pub model: &'a Model,
    pub optimizer: &'a mut Optimizer,
    /// What was contrasted, over all ranks.
    pub sets: &'a EmbeddingSets,
    /// Gradients of the method's modules, summed over the ranks.
    pub modules: NamedGrads,
    /// What the batch norm of the method's modules saw.
    pub buffers: BufferUpdates,
    /// Gradients of the loss's own parameters.
    pub parameters: Vec<(&'static str, f64)>,
    pub lr: f64,
}

/// A method that is its loss and nothing more.
struct LossOnly(Box<dyn Loss>);

impl Method for LossOnly {
    fn loss(&self) -> &dyn Loss {
        self.0.as_ref()
    }
}

fn check_temperature(temperature: f64) -> Result<(), Problem> {
    if (0.005..=10.0).contains(&temperature) {
        return Ok(());
    }
    Err(("method.temperature".into(), format!("is {temperature}; it must lie between 0.005 and 10 (try 0.1)")))
}
