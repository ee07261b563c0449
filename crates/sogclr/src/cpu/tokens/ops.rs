//! The operations on tokens that our kernels compute, and their gradients.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::DType;
use sogclr_kernels::{Activation, Isa};

/// What stands between the two linear layers of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    /// Attention of `heads`; causal, if a token looks at itself and at earlier ones alone.
    Attention { heads: usize, causal: bool },
    /// Each value for itself.
    Mlp(Activation),
}

/// How a branch is computed.
#[derive(Clone, Copy, Debug)]
pub struct Branch {
    pub inner: Inner,
    /// Of the layer norm.
    pub epsilon: f64,
    /// What its layers read, and what it keeps of them for the gradient: f32 or bf16. What it adds to, and the sum, are f32.
    pub values: DType,
    pub isa: Isa,
}

/// Operations on tokens `[…, width]`.
#[backend_extension(Flex, Autodiff)]
pub trait Tokens: Backend {
    fn token_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
        isa: Isa,
    ) -> FloatTensor<Self>;

    /// x + second(inner(first(norm(x)))), x `[n, length, width]`
    #[allow(clippy::too_many_arguments)] // the parameters of one branch
    fn branch(
        x: FloatTensor<Self>,
        norm_weight: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        first_weight: FloatTensor<Self>,
        first_bias: FloatTensor<Self>,
        second_weight: FloatTensor<Self>,
        second_bias: FloatTensor<Self>,
        branch: Branch,
    ) -> FloatTensor<Self>;
}

/// Their gradients, on a backend that holds values.
pub trait TokensGrad: Tokens {
    /// Gradients of x, weight and bias.
    fn token_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        epsilon: f64,
        isa: Isa,
    ) -> [FloatTensor<Self>; 3];

    /// The output of [`Tokens::branch`], whose tensors these are, and what its gradient needs.
    fn branch_forward(tensors: [FloatTensor<Self>; 7], branch: Branch) -> (FloatTensor<Self>, BranchState<Self>);

    /// Gradients of the seven tensors.
    fn branch_backward(state: BranchState<Self>, dy: FloatTensor<Self>) -> [FloatTensor<Self>; 7];
}

/// What a branch keeps for its gradient. The norm is computed again.
#[derive(Clone, Debug)]
pub struct BranchState<B: Backend> {
    pub x: FloatTensor<B>,
    pub norm: [FloatTensor<B>; 2],
    pub first_weight: FloatTensor<B>,
    pub second_weight: FloatTensor<B>,
    /// What goes into the second layer.
    pub mixed: FloatTensor<B>,
    /// Queries, keys and values, or the slopes of the activation.
    pub before: FloatTensor<B>,
    /// Of the softmax, where there is attention.
    pub log_sums: Option<FloatTensor<B>>,
    pub branch: Branch,
}
