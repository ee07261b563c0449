//! Layer norm and the residual branches of transformers. A branch is one operation: its norm, its linear layers and what is
//! between them share buffers, keep what is cheapest to keep for the gradient, and add the residual where the values are at hand.

mod autodiff;
mod flex;
mod ops;

pub(crate) use ops::Inner;

use super::Engine;
use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};
use ops::{Branch, Tokens};

/// (x − mean)/√(var + ε)·weight + bias over the last axis.
pub(crate) fn layer_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    epsilon: f64,
    engine: Engine,
) -> Tensor<D> {
    let (x, weight, bias) = (x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
    Tensor::from_dispatch(<Dispatch as Tokens>::token_norm(x, weight, bias, epsilon, engine.isa))
}

/// x + second(inner(first(norm(x)))); x `[n, length, width]`, layers as weight `[out, in]` and bias. x and the sum are f32, `values`
/// what lies between.
#[expect(clippy::too_many_arguments, reason = "the parts of one formula")]
pub(crate) fn branch(
    x: Tensor<3>,
    (norm_weight, norm_bias): (Tensor<1>, Tensor<1>),
    epsilon: f64,
    (first_weight, first_bias): (Tensor<2>, Tensor<1>),
    inner: Inner,
    (second_weight, second_bias): (Tensor<2>, Tensor<1>),
    values: DType,
    engine: Engine,
) -> Tensor<3> {
    let branch = Branch { inner, epsilon, values, isa: engine.isa };
    Tensor::from_dispatch(<Dispatch as Tokens>::branch(
        x.into_dispatch(),
        norm_weight.into_dispatch(),
        norm_bias.into_dispatch(),
        first_weight.into_dispatch(),
        first_bias.into_dispatch(),
        second_weight.into_dispatch(),
        second_bias.into_dispatch(),
        branch,
    ))
}
