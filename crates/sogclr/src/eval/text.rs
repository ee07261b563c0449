//! Embeddings of texts by a frozen encoder.

use super::{EvalError, features::hash_tensors};
use crate::batch::Texts;
use crate::encoder::{Compute, Model, ModelConfig, TextEncoder, from_open_clip};
use crate::math::{Matrix, UnitRows};
use crate::params::{NamedTensors, export, import, to_matrix};
use ndarray::s;

/// Texts in one forward pass.
const CHUNK: usize = 256;

/// A text encoder without gradients; nothing that it offers can change its weights.
pub struct FrozenText {
    net: TextEncoder,
    context: usize,
    compute: Compute,
}

impl FrozenText {
    /// From the exported weights of image–text pairs (`encoder.safetensors`).
    pub fn load(config: &ModelConfig, weights: &NamedTensors, compute: Compute) -> Result<Self, EvalError> {
        let text = config.text.as_ref().ok_or(EvalError::NoText)?;
        let renamed = from_open_clip(weights).into_iter();
        let weights = renamed.filter_map(|(name, tensor)| Some((name.strip_prefix("text.")?.to_owned(), tensor)));
        let net = TextEncoder::new(text, config.output(), &compute);
        Ok(Self { net: import(net, &weights.collect())?, context: text.context, compute })
    }

    /// The encoder that a run with `seed` starts from, for comparison.
    pub fn untrained(config: &ModelConfig, seed: u64, compute: Compute) -> Result<Self, EvalError> {
        let context = config.text.as_ref().ok_or(EvalError::NoText)?.context;
        let net = Model::new(config, seed, &compute).text.ok_or(EvalError::NoText)?;
        Ok(Self { net, context, compute })
    }

    /// Tells encoders apart: a hash of the weights.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hash_tensors(&mut hasher, &export(&self.net));
        hasher.finalize().to_hex().to_string()
    }

    /// Unit-norm embeddings `[texts, dim]`; `progress` is told how many more are done.
    pub fn embed(&self, texts: &[&str], progress: impl Fn(usize)) -> Result<UnitRows, EvalError> {
        let mut all: Option<Matrix> = None;
        for (chunk, texts_of_chunk) in texts.chunks(CHUNK).enumerate() {
            let tokens = Texts::tokenize(texts_of_chunk.iter().copied(), self.context);
            let (ids, ends) = tokens.rows(&(0..texts_of_chunk.len()).collect::<Vec<_>>());
            let out = self.net.forward(&ids, &ends, self.compute.device());
            let block = to_matrix(out);
            let all = all.get_or_insert_with(|| Matrix::zeros((texts.len(), block.ncols())));
            let first = chunk * CHUNK;
            all.slice_mut(s![first..first + block.nrows(), ..]).assign(&block);
            progress(block.nrows());
        }
        let rows = UnitRows::new(all.unwrap_or_default());
        if rows.first_non_finite().is_some() {
            return Err(EvalError::NonFinite);
        }
        Ok(rows)
    }
}
