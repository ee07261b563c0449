//! The image and the text encoder of a model of pairs, together.

use super::{EvalError, FrozenEncoder, FrozenText, Retrieval, retrieve, retrieve_by_chance};
use crate::comm::Group;
use crate::data::Split;
use crate::math::UnitRows;

/// Both encoders, frozen.
pub struct PairEncoders {
    /// Of images.
    pub image: FrozenEncoder,
    /// Of texts.
    pub text: FrozenText,
}

impl PairEncoders {
    /// Shares the images with the other ranks of `group`.
    pub fn shared_by(self, group: &Group) -> Self {
        Self { image: self.image.shared_by(group), ..self }
    }

    /// Tells pairs of encoders apart.
    pub fn digest(&self) -> String {
        blake3::hash((self.image.digest() + &self.text.digest()).as_bytes()).to_hex().to_string()
    }

    /// Unit-norm embeddings of a split's images.
    pub fn images(&self, split: &Split, progress: impl Fn(usize) + Sync) -> Result<UnitRows, EvalError> {
        Ok(UnitRows::new(self.image.embed(split, progress)?))
    }

    /// Recall among the pairs of a split; `progress` is told how many more images and captions are done.
    pub fn retrieval(&self, split: &Split, progress: impl Fn(usize) + Sync) -> Result<Retrieval, EvalError> {
        let images = self.images(split, &progress)?;
        let (mut texts, mut owners) = (Vec::new(), Vec::new());
        for id in 0..split.len() {
            texts.extend(split.captions(id).iter().map(String::as_str));
            owners.resize(texts.len(), id);
        }
        let texts = self.text.embed(&texts, progress)?;
        Ok(retrieve(images.matrix(), texts.matrix(), &owners))
    }

    /// What a random order would reach among the pairs of a split.
    pub fn chance(split: &Split) -> Retrieval {
        retrieve_by_chance(&(0..split.len()).map(|id| split.captions(id).len()).collect::<Vec<_>>())
    }
}
