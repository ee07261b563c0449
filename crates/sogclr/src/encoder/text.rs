//! CLIP's text encoder: token and position embeddings, a causal transformer, the feature at END, a projection.

use super::Compute;
use super::layers::value_for;
use super::transformer::{LayerNorm, Transformer, clip_deviation};
use crate::check::{Problem, require};
use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData, module};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The text encoder of image–text pairs, CLIP's transformer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextConfig {
    /// Values that stand for a token inside the transformer.
    pub width: usize,
    /// Blocks of attention and MLP.
    pub layers: usize,
    /// Attention heads; must divide the width.
    pub heads: usize,
    /// Tokens of a text at most; longer ones are cut. START and END count.
    pub context: usize,
    /// Entries of the vocabulary: CLIP's 49408.
    pub vocabulary: usize,
    /// Dimension of the embedding that images and texts share, where the image encoder leaves it open; a clip encoder fixes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<usize>,
}

impl TextConfig {
    /// The paper's: width 128, 8 layers of 8 heads.
    pub fn clip_s() -> Self {
        use crate::text::{CONTEXT, VOCABULARY};
        Self { width: 128, layers: 8, heads: 8, context: CONTEXT, vocabulary: VOCABULARY, output: None }
    }
}

impl TextConfig {
    /// Refuses impossible values.
    pub fn check(&self) -> Result<(), Problem> {
        use crate::text::{CONTEXT, VOCABULARY};
        let Self { width, layers, heads, context, vocabulary, output } = *self;
        require(vocabulary == VOCABULARY, "text.vocabulary", || {
            format!("is {vocabulary}; CLIP's vocabulary has {VOCABULARY} entries")
        })?;
        require((3..=CONTEXT).contains(&context), "text.context", || {
            format!("is {context}; it must lie between 3 and {CONTEXT}")
        })?;
        require((1..=64).contains(&layers), "text.layers", || format!("is {layers}; 1 to 64"))?;
        let divides = width >= 1 && heads >= 1 && width.is_multiple_of(heads);
        require(divides, "text.heads", || format!("is {heads}; it must divide the width of {width}"))?;
        let size = output.unwrap_or(2);
        require((2..=65_536).contains(&size), "text.output", || format!("is {size}; it must lie between 2 and 65536"))
    }

    /// Standard deviations of CLIP's initial weights; `None` for what is not drawn.
    pub(super) fn deviation(&self, name: &str, dims: &[usize]) -> Option<f64> {
        match name {
            "token_embedding.weight" => Some(0.02),
            "positional_embedding" => Some(0.01),
            _ => clip_deviation(self.layers, name, dims),
        }
    }
}

#[derive(Module, Debug)]
pub struct Embedding {
    weight: Param<Tensor<2>>,
}

/// Parameters have the names of CLIP's state dict.
#[derive(Module, Debug)]
pub struct TextEncoder {
    positional_embedding: Param<Tensor<2>>,
    text_projection: Param<Tensor<2>>,
    transformer: Transformer,
    token_embedding: Embedding,
    ln_final: LayerNorm,
}

impl TextEncoder {
    /// Weights are zero until [`crate::params::import`] or an initialisation fills them.
    pub fn new(config: &TextConfig, output: usize, compute: &Compute) -> Self {
        let device = compute.device();
        let zeros = |rows, columns| Param::from_tensor(Tensor::zeros([rows, columns], device));
        Self {
            positional_embedding: zeros(config.context, config.width),
            text_projection: zeros(config.width, output),
            transformer: Transformer::new(config.width, config.layers, config.heads, compute),
            token_embedding: Embedding { weight: zeros(config.vocabulary, config.width) },
            ln_final: LayerNorm::new(config.width, compute),
        }
    }

    /// Texts of equally many ids, at most `context`, and where each text ends → embeddings `[N, output]`, not normalised.
    /// What follows the end changes nothing, as no token looks at later ones.
    ///
    /// # Panics
    /// If an id is not in the vocabulary, or the ids are not a whole number of texts that fit the context.
    pub fn forward(&self, ids: &[u32], ends: &[usize], device: &Device) -> Tensor<2> {
        let like = Tensor::<1>::zeros([1], device);
        let (tokens, positions) =
            (value_for(&self.token_embedding.weight, &like), value_for(&self.positional_embedding, &like));
        let ([vocabulary, width], [context, _], texts) = (tokens.dims(), positions.dims(), ends.len());
        let length = ids.len() / texts;
        assert!(length <= context && length * texts == ids.len(), "every text has at most {context} ids");
        assert!(ids.iter().all(|&id| (id as usize) < vocabulary), "ids are below {vocabulary}");
        let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [texts, length]), device);
        let x = module::embedding(tokens, ids) + positions.narrow(0, 0, length).unsqueeze();
        let x = self.ln_final.forward(self.transformer.forward(x, true));
        // The feature at END.
        let rows: Vec<i32> = ends.iter().enumerate().map(|(text, end)| (text * length + end) as i32).collect();
        let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [texts]), device);
        let features = x.reshape([texts * length, width]).select(0, rows);
        features.matmul(value_for(&self.text_projection, &like))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{initialise, to_host, to_matrix};

    fn small(compute: &Compute) -> TextEncoder {
        let config = TextConfig { width: 8, layers: 2, heads: 2, context: 6, vocabulary: 10, output: None };
        initialise(TextEncoder::new(&config, 3, compute), 5)
    }

    fn encode(ids: &[u32], ends: &[usize]) -> Vec<f32> {
        let compute = Compute::cpu();
        to_host(small(&compute).forward(ids, ends, compute.device()))
    }

    fn are_close(a: &[f32], b: &[f32]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
    }

    #[test]
    fn what_follows_the_end_changes_nothing() {
        let text = encode(&[8, 3, 9], &[2]);
        assert!(are_close(&text, &encode(&[8, 3, 9, 0, 0, 0], &[2])));
        assert!(are_close(&text, &encode(&[8, 3, 9, 5, 9, 1], &[2])));
        assert!(!are_close(&text, &encode(&[8, 4, 9, 0, 0, 0], &[2])), "what comes before it does");
        assert!(!are_close(&text, &encode(&[3, 8, 9], &[2])), "and so does the order");
        assert!(!are_close(&text, &encode(&[8, 3, 9, 0, 0, 0], &[3])), "the feature is the one at the end");
    }

    #[test]
    fn texts_of_a_batch_do_not_see_each_other() {
        let compute = Compute::cpu();
        let both = to_matrix(small(&compute).forward(&[8, 3, 9, 0, 8, 9, 0, 0], &[2, 1], compute.device()));
        assert!(are_close(&both.row(0).to_vec(), &encode(&[8, 3, 9], &[2])), "{both}");
        assert!(are_close(&both.row(1).to_vec(), &encode(&[8, 9], &[1])), "{both}");
    }

    #[test]
    #[should_panic(expected = "every text has at most 6 ids")]
    fn texts_longer_than_the_context_are_refused() {
        encode(&[8, 1, 2, 3, 4, 5, 9], &[6]);
    }

    #[test]
    #[should_panic(expected = "ids are below 10")]
    fn ids_beyond_the_vocabulary_are_refused() {
        encode(&[8, 10, 9], &[2]);
    }

    #[test]
    fn impossible_text_encoders_are_refused_by_their_key() {
        let good = TextConfig::clip_s();
        let key = |config: TextConfig| config.check().unwrap_err().key;
        assert_eq!(good.check(), Ok(()));
        assert_eq!(key(TextConfig { vocabulary: 100, ..good.clone() }), "text.vocabulary");
        assert_eq!(key(TextConfig { context: 2, ..good.clone() }), "text.context");
        assert_eq!(key(TextConfig { context: 78, ..good.clone() }), "text.context");
        assert_eq!(key(TextConfig { layers: 0, ..good.clone() }), "text.layers");
        assert_eq!(key(TextConfig { heads: 3, ..good.clone() }), "text.heads");
        assert_eq!(key(TextConfig { heads: 0, ..good.clone() }), "text.heads");
        assert_eq!(key(TextConfig { output: Some(1), ..good }), "text.output");
    }
}
