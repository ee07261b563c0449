//! CPU kernels for contrastive training of ResNets: convolutions, batch norm and pooling with their gradients, on
//! channel-last activations `[n, h, w, c]`; linear layers, layer norm and attention of transformers with theirs; the
//! exponentials of a row of similarities; and the colours, blur and normalisation of a view, which give the same bytes
//! under every instruction set. AVX-512, AVX2 or plain Rust,
//! by an argument ([`Isa`], [`Engine`]); parallel over rayon; the same bytes for any number of threads. Knows nothing
//! of tensors or autodiff.

#![deny(missing_docs)]
// Registers are arrays indexed by the row of a tile, and one macro serves tiles of any height.
#![allow(clippy::needless_range_loop, clippy::int_plus_one)]

mod activation;
mod add;
mod attention;
mod attention_grad;
mod batch_norm;
mod blur;
mod buffer;
mod colour;
mod conv;
mod direct;
mod element;
mod isa;
mod lanes;
mod layer_norm;
mod linear;
mod linear_grad;
mod normed;
mod pairs;
mod panel;
mod pixels;
mod pointwise;
mod pool;
mod round;
mod shared;
mod softmax;
mod tile;
mod winograd;

pub use activation::Activation;
pub use add::add_to;
pub use attention::{Attention, attention};
pub use attention_grad::attention_grad;
pub use batch_norm::{Gate, NormGrad, NormInput, NormRelu, NormStats, Ranks, norm_apply, norm_backward, norm_stats};
pub use blur::separable;
pub use buffer::Buffer;
pub use colour::{Colour, colour, mean_luma};
pub use conv::{Conv, Engine, conv2d, conv2d_input_grad, conv2d_weight_grad};
pub use element::Element;
pub use half::bf16;
pub use isa::Isa;
pub use layer_norm::{layer_norm, layer_norm_grad};
pub use linear::{Linear, linear, linear_activate, linear_input_grad};
pub use linear_grad::linear_weight_grad;
pub use normed::{conv2d_of_norm, conv2d_of_norm_weight_grad};
pub use pixels::{normalised_pixels, planes_of};
pub use pool::{MaxPool, average_pool, average_pool_grad, max_pool, max_pool_grad, mean_pool, mean_pool_grad};
pub use round::round_to;
pub use softmax::{SoftmaxSum, softmax_pair, softmax_sum};
