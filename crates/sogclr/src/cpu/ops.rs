//! The operations that our kernels compute, and their gradients.

use super::meeting::Meeting;
use super::recipe::{Ingredients, Recipe};
use crate::comm::Group;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::DType;
use sogclr_kernels::{Engine, Isa};

/// Operations on channel-last activations.
#[backend_extension(Flex, Autodiff)]
pub trait ChannelsLast: Backend {
    fn conv_last(x: FloatTensor<Self>, weight: FloatTensor<Self>, stride: usize, engine: Engine) -> FloatTensor<Self>;

    fn max_pool_last(x: FloatTensor<Self>) -> FloatTensor<Self>;

    fn average_pool_last(x: FloatTensor<Self>) -> FloatTensor<Self>;

    fn mean_pool_last(x: FloatTensor<Self>) -> FloatTensor<Self>;

    fn norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        relu: bool,
        epsilon: f64,
        isa: Isa,
        group: Group,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Where the recipe of x is written, x itself is not kept.
    #[allow(clippy::too_many_arguments)] // the inputs of one formula
    fn norm_add(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        relu: bool,
        epsilon: f64,
        isa: Isa,
        group: Group,
        recipe: Recipe,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// conv(ReLU(norm(x))), mean and variance; what is between norm and convolution is never kept. The recipe is written.
    #[allow(clippy::too_many_arguments)] // the inputs of one formula
    fn norm_conv(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        conv: FloatTensor<Self>,
        stride: usize,
        epsilon: f64,
        engine: Engine,
        group: Group,
        recipe: Recipe,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// The same with the 3×3 maximum in place of a convolution.
    fn norm_max_pool(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
        isa: Isa,
        group: Group,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// x, one of two uses whose gradients meet.
    fn meet(x: FloatTensor<Self>, meeting: Meeting, isa: Isa) -> FloatTensor<Self>;

    fn scale_shift(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        has_residual: bool,
        relu: bool,
        isa: Isa,
    ) -> FloatTensor<Self>;
}

/// Their gradients, on a backend that holds values.
pub trait ChannelsLastGrad: ChannelsLast {
    /// Gradients of x (if wanted) and weight.
    fn conv_last_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        stride: usize,
        engine: Engine,
        wants_dx: bool,
    ) -> (Option<FloatTensor<Self>>, FloatTensor<Self>);

    /// The sum of two gradients.
    fn add_gradients(a: FloatTensor<Self>, b: FloatTensor<Self>, isa: Isa) -> FloatTensor<Self>;

    fn max_pool_last_backward(x: FloatTensor<Self>, y: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;

    fn average_pool_last_backward(dy: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `shape` and `dtype` are those of the input.
    fn mean_pool_last_backward(dy: FloatTensor<Self>, shape: [usize; 4], dtype: DType) -> FloatTensor<Self>;

    /// Gradients of x, weight, bias and, if wanted, the residual. `y` is the output where ReLU was applied: its mask.
    fn norm_backward(
        norm: Norm<Self>,
        y: Option<FloatTensor<Self>>,
        dy: FloatTensor<Self>,
        wants_residual: bool,
    ) -> NormGrads<Self>;

    /// Gradients of the norm's inputs and of the convolution's weight.
    fn norm_conv_backward(
        norm: Norm<Self>,
        conv: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        stride: usize,
        engine: Engine,
    ) -> (NormGrads<Self>, FloatTensor<Self>);

    /// The output of [`ChannelsLast::norm_conv`] once more.
    fn norm_conv_again(of: Ingredients<Self>) -> FloatTensor<Self>;

    /// Gradients of the norm's inputs; `y` is the maximum.
    fn norm_max_pool_backward(norm: Norm<Self>, y: FloatTensor<Self>, dy: FloatTensor<Self>) -> NormGrads<Self>;
}

/// What a batch norm keeps for its gradient.
#[derive(Clone, Debug)]
pub struct Norm<B: Backend> {
    pub x: FloatTensor<B>,
    pub weight: FloatTensor<B>,
    pub bias: FloatTensor<B>,
    pub mean: FloatTensor<B>,
    pub var: FloatTensor<B>,
    pub epsilon: f64,
    pub isa: Isa,
    /// The ranks that share the batch.
    pub group: Group,
}

/// Gradients of a batch norm's inputs.
pub struct NormGrads<B: Backend> {
    pub x: FloatTensor<B>,
    pub weight: FloatTensor<B>,
    pub bias: FloatTensor<B>,
    pub residual: Option<FloatTensor<B>>,
}
