//! CLIP's vision transformer: patches and a class token, transformer blocks, a projection of the class token. Parameters have
//! the names of CLIP's state dict, below `visual`.

use super::layers::value_for;
use super::transformer::{LayerNorm, Transformer};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

#[derive(Clone, Debug, PartialEq)]
pub struct VitConfig {
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    /// Side of a patch in pixels; divides the image.
    pub patch: usize,
    /// Side of the images in pixels.
    pub image_size: usize,
    /// Dimension of the embedding that images and texts share.
    pub output: usize,
}

/// The weight of a convolution whose stride is its kernel.
#[derive(Module, Debug)]
pub struct PatchEmbedding {
    weight: Param<Tensor<4>>,
}

#[derive(Module, Debug)]
pub struct VisionTransformer {
    class_embedding: Param<Tensor<1>>,
    positional_embedding: Param<Tensor<2>>,
    proj: Param<Tensor<2>>,
    conv1: PatchEmbedding,
    ln_pre: LayerNorm,
    transformer: Transformer,
    ln_post: LayerNorm,
}

impl VisionTransformer {
    /// Weights are zero until [`super::import`] or an initialisation fills them.
    pub fn new(config: &VitConfig, device: &Device) -> Self {
        let (width, patch) = (config.width, config.patch);
        let zeros = |rows, columns| Param::from_tensor(Tensor::zeros([rows, columns], device));
        let places = (config.image_size / patch).pow(2);
        Self {
            class_embedding: Param::from_tensor(Tensor::zeros([width], device)),
            positional_embedding: zeros(places + 1, width),
            proj: zeros(width, config.output),
            conv1: PatchEmbedding { weight: Param::from_tensor(Tensor::zeros([width, 3, patch, patch], device)) },
            ln_pre: LayerNorm::new(width, device),
            transformer: Transformer::new(width, config.layers, config.heads, device),
            ln_post: LayerNorm::new(width, device),
        }
    }

    /// `[N, 3, S, S]` → embeddings `[N, output]`, not normalised
    pub fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let weight = value_for(&self.conv1.weight, &x);
        let ([n, channels, size, _], [width, _, patch, _]) = (x.dims(), weight.dims());
        let (side, values) = (size / patch, channels * patch * patch);
        // Patches as rows: [N·places, 3·patch²]
        let patches = x.reshape([n, channels, side, patch, side, patch]).permute([0, 2, 4, 1, 3, 5]);
        let tokens = patches.reshape([n * side * side, values]).matmul(weight.reshape([width, values]).transpose());
        let tokens = tokens.reshape([n, side * side, width]);
        let class = value_for(&self.class_embedding, &tokens).reshape([1, 1, width]).repeat_dim(0, n);
        let x = Tensor::cat(vec![class, tokens], 1);
        let x = x.clone() + value_for(&self.positional_embedding, &x).unsqueeze();
        let x = self.transformer.forward(self.ln_pre.forward(x), None);
        let class = self.ln_post.forward(x.narrow(1, 0, 1)).reshape([n, width]);
        let proj = value_for(&self.proj, &class);
        class.matmul(proj)
    }
}
