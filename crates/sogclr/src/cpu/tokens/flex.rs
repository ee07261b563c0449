//! The operations on burn's CPU backend.

use super::ops::{Branch, BranchState, Inner, Tokens, TokensGrad};
use crate::cpu::flex::{FlexTensor, Value, dims, packed, pooled, values, vector};
use burn::backend::Flex;
use burn::tensor::DType;
use sogclr_kernels::{
    Attention, Buffer, Isa, Linear, attention, attention_grad, bf16, layer_norm, layer_norm_grad, linear,
    linear_activate, linear_input_grad, linear_weight_grad, round_to,
};

/// LN(x), and mean and 1/σ of each row.
fn normalise<T: Value>(
    x: &FlexTensor,
    weight: &FlexTensor,
    bias: &FlexTensor,
    epsilon: f64,
    isa: Isa,
) -> (Buffer<T>, Buffer) {
    let (x, weight) = (values::<f32>(x), values(weight));
    let (mut y, mut stats) = (Buffer::of(x.len()), Buffer::new(2 * (x.len() / weight.len())));
    layer_norm(isa, x, weight, values(bias), epsilon as f32, &mut y, &mut stats);
    (y, stats)
}

/// The layer of these weights over rows of x.
fn layer<T>(x: &[T], weight: &FlexTensor) -> Linear {
    let shape = dims(weight);
    Linear { rows: x.len() / shape[1], input: shape[1], output: shape[0] }
}

/// Gradients of weights and bias.
fn parameter_grads<T: Value>(isa: Isa, weight: &FlexTensor, x: &[T], dy: &[T]) -> [FlexTensor; 2] {
    let shape = layer(x, weight);
    let (mut dw, mut db) = (Buffer::new(shape.output * shape.input), Buffer::new(shape.output));
    linear_weight_grad(isa, shape, x, dy, &mut dw, &mut db);
    [pooled(dw, &dims(weight)), pooled(db, &[shape.output])]
}

/// The heads over sequences of x `[n, length, width]`.
fn attending(x: &FlexTensor, heads: usize, causal: bool) -> Attention {
    let shape = dims(x);
    Attention { n: shape[0], length: shape[1], heads, size: shape[2] / heads, causal }
}

/// f32 values as T: themselves, or rounded.
fn stored_as<T: Value>(tensor: &FlexTensor, isa: Isa) -> FlexTensor {
    if tensor.dtype() == T::dtype() {
        return tensor.clone();
    }
    let from = values::<f32>(tensor);
    let mut to = Buffer::<T>::of(from.len());
    round_to(isa, from, &mut to);
    pooled(to, &dims(tensor))
}

fn forward<T: Value>(tensors: [FlexTensor; 7], branch: Branch) -> (FlexTensor, BranchState<Flex>) {
    let [x, norm_weight, norm_bias, first_weight, first_bias, second_weight, second_bias] = tensors.map(packed);
    let Branch { inner, epsilon, isa, .. } = branch;
    let (h, _) = normalise::<T>(&x, &norm_weight, &norm_bias, epsilon, isa);
    let first = layer(&h, &first_weight);
    let (first_values, bias) = (values(&first_weight), values(&first_bias));
    let mut before = Buffer::<T>::of(first.rows * first.output);
    let (mixed, log_sums) = match inner {
        Inner::Attention { heads, causal } => {
            let shape = attending(&x, heads, causal);
            linear(isa, first, &h, first_values, bias, None, &mut before);
            let (mut mixed, mut log_sums) = (Buffer::of(shape.out_len()), Buffer::new(shape.sums_len()));
            attention(isa, shape, &before, &mut mixed, &mut log_sums);
            (mixed, Some(log_sums))
        }
        Inner::Mlp(activation) => {
            let mut mixed = Buffer::of(before.len());
            linear_activate(isa, first, &h, first_values, bias, activation, &mut mixed, &mut before);
            (mixed, None)
        }
    };
    drop(h);
    let mut y = Buffer::<f32>::new(values::<f32>(&x).len());
    let second = layer(&mixed, &second_weight);
    linear(isa, second, &mixed, values(&second_weight), values(&second_bias), Some(values(&x)), &mut y);
    let y = pooled(y, &dims(&x));
    let log_sums = log_sums.map(|sums| rows(sums, first.rows));
    let (mixed, before) = (rows(mixed, first.rows), rows(before, first.rows));
    let norm = [norm_weight, norm_bias];
    (y, BranchState { x, norm, first_weight, second_weight, mixed, before, log_sums, branch })
}

/// As many rows of equal length.
fn rows<T: Value>(values: Buffer<T>, count: usize) -> FlexTensor {
    let columns = values.len() / count;
    pooled(values, &[count, columns])
}

fn backward<T: Value>(state: BranchState<Flex>, dy: FlexTensor) -> [FlexTensor; 7] {
    let BranchState { x, norm, first_weight, second_weight, mixed, before, log_sums, branch } = state;
    let (Branch { inner, epsilon, isa, .. }, dy) = (branch, packed(dy));
    let d_sum = stored_as::<T>(&dy, isa);
    let [d_second, d_second_bias] = parameter_grads::<T>(isa, &second_weight, values(&mixed), values(&d_sum));
    let second = layer(values::<T>(&mixed), &second_weight);
    let mut d_before = Buffer::<T>::of(values::<T>(&before).len());
    match inner {
        Inner::Attention { heads, causal } => {
            let log_sums = log_sums.expect("attention keeps its sums");
            let mut d_mixed = Buffer::<T>::of(values::<T>(&mixed).len());
            linear_input_grad(isa, second, values(&d_sum), values(&second_weight), None, &mut d_mixed);
            let (shape, all, sums) = (attending(&x, heads, causal), values(&before), values(&log_sums));
            attention_grad(isa, shape, all, values(&mixed), sums, &d_mixed, &mut d_before);
        }
        Inner::Mlp(_) => {
            let slopes = Some(values(&before));
            linear_input_grad(isa, second, values(&d_sum), values(&second_weight), slopes, &mut d_before);
        }
    }
    drop((mixed, before, d_sum));
    let (mut h, stats) = normalise::<T>(&x, &norm[0], &norm[1], epsilon, isa);
    let [d_first, d_first_bias] = parameter_grads::<T>(isa, &first_weight, &h, &d_before);
    let dh = {
        let first = layer(&h, &first_weight);
        linear_input_grad(isa, first, &d_before, values(&first_weight), None, &mut h);
        h
    };
    let mut dx = Buffer::new(dh.len());
    let residual = Some(values(&dy));
    let (dw, db) = layer_norm_grad::<T>(isa, values(&x), values(&norm[0]), &stats, &dh, residual, &mut dx);
    [pooled(dx, &dims(&x)), vector(dw), vector(db), d_first, d_first_bias, d_second, d_second_bias]
}

impl Tokens for Flex {
    fn token_norm(x: FlexTensor, weight: FlexTensor, bias: FlexTensor, epsilon: f64, isa: Isa) -> FlexTensor {
        let (x, weight, bias) = (packed(x), packed(weight), packed(bias));
        pooled(normalise::<f32>(&x, &weight, &bias, epsilon, isa).0, &dims(&x))
    }

    fn branch(
        x: FlexTensor,
        norm_weight: FlexTensor,
        norm_bias: FlexTensor,
        first_weight: FlexTensor,
        first_bias: FlexTensor,
        second_weight: FlexTensor,
        second_bias: FlexTensor,
        branch: Branch,
    ) -> FlexTensor {
        let tensors = [x, norm_weight, norm_bias, first_weight, first_bias, second_weight, second_bias];
        Self::branch_forward(tensors, branch).0
    }
}

impl TokensGrad for Flex {
    fn token_norm_backward(
        x: FlexTensor,
        weight: FlexTensor,
        dy: FlexTensor,
        epsilon: f64,
        isa: Isa,
    ) -> [FlexTensor; 3] {
        let (x, weight, dy) = (packed(x), packed(weight), packed(dy));
        // The gradient needs the statistics alone: any weight serves as bias.
        let (mut dx, stats) = normalise::<f32>(&x, &weight, &weight, epsilon, isa);
        let (dw, db) = layer_norm_grad::<f32>(isa, values(&x), values(&weight), &stats, values(&dy), None, &mut dx);
        [pooled(dx, &dims(&x)), vector(dw), vector(db)]
    }

    fn branch_forward(tensors: [FlexTensor; 7], branch: Branch) -> (FlexTensor, BranchState<Self>) {
        match branch.values {
            DType::BF16 => forward::<bf16>(tensors, branch),
            _ => forward::<f32>(tensors, branch),
        }
    }

    fn branch_backward(state: BranchState<Self>, dy: FlexTensor) -> [FlexTensor; 7] {
        match state.branch.values {
            DType::BF16 => backward::<bf16>(state, dy),
            _ => backward::<f32>(state, dy),
        }
    }
}
