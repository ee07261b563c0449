//! Evaluation of a frozen encoder: linear classifier and nearest neighbours on the features before the head; retrieval and
//! zero-shot classification with image–text pairs. Never imports training.
//!
//! Adding one: a new file here, and a verb in `cli`.

mod accuracy;
mod cache;
mod features;
mod histogram;
mod knn;
mod linear_fast;
mod linear_paper;
mod logistic;
mod measured;
mod pairs;
mod retrieval;
mod split;
mod text;
mod zero_shot;

use crate::comm::Halt;
pub use accuracy::{Accuracy, Comparison};
pub use features::{FrozenEncoder, Labelled};
pub use histogram::{HISTOGRAM_BINS, colour_histograms};
pub use knn::{knn_accuracy, knn_among, knn_scores};
pub use linear_fast::linear_fast;
pub use linear_paper::{PaperMeasured, PaperProtocol, linear_paper};
pub use logistic::{LinearClassifier, fit_logistic};
pub use measured::{Measured, NEIGHBOURS, features, measure};
pub use pairs::PairEncoders;
pub use retrieval::{Recall, Retrieval, retrieve, retrieve_by_chance};
pub use split::labelled_splits;
pub use text::FrozenText;
pub use zero_shot::{TEMPLATES, ZeroShot, class_weights, clip_templates, zero_shot};

/// Why something cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// Another rank has a problem.
    #[error("rank {rank} on {host}: {cause}")]
    Elsewhere {
        /// Which.
        rank: usize,
        /// Where it runs.
        host: String,
        /// What it says.
        cause: String,
    },
    /// The data cannot be opened or read.
    #[error(transparent)]
    Data(#[from] crate::data::DataError),
    /// A file that an evaluation keeps cannot be written.
    #[error(transparent)]
    Storage(#[from] crate::storage::StorageError),
    /// The weights belong to another model.
    #[error(transparent)]
    Params(#[from] crate::params::ParamError),
    /// The named data has no classes.
    #[error("{0} has no labels: evaluation needs a folder for each class, or another DATA")]
    NoLabels(String),
    /// The named data has a single class.
    #[error("{0} has only one class and evaluation needs two: add images of another class, or name another DATA")]
    OneClass(String),
    /// Of the named data one side of the split is empty.
    #[error("{0} leaves no images to test or to train on: add images, or name some for testing")]
    NoTest(String),
    /// Texts are to be embedded by a run on images alone.
    #[error("the run has no text encoder: only runs on image–text pairs have one")]
    NoText,
    /// Features or embeddings hold a NaN or an infinity.
    #[error("the encoder gave features that are not finite: its weights are broken")]
    NonFinite,
}

impl From<Halt<EvalError>> for EvalError {
    fn from(halt: Halt<EvalError>) -> Self {
        match halt {
            Halt::Here(error) => error,
            Halt::Elsewhere { rank, host, cause } => Self::Elsewhere { rank, host, cause },
        }
    }
}
