//! The operations on burn's CPU backend.

use super::ops::{Branch, BranchState, Inner, Tokens, TokensGrad};
use crate::cpu::flex::{FlexTensor, dims, packed, pooled, values, vector};
use burn::backend::Flex;
use sogclr_kernels::{
    Attention, Buffer, Isa, Linear, attention, attention_grad, layer_norm, layer_norm_grad, linear, linear_activate,
    linear_input_grad, linear_weight_grad,
};

/// LN(x), and mean and 1/σ of each row.
fn normalise(x: &FlexTensor, weight: &FlexTensor, bias: &FlexTensor, epsilon: f64, isa: Isa) -> (Buffer, Buffer) {
    let (x, weight) = (values(x), values(weight));
    let (mut y, mut stats) = (Buffer::new(x.len()), Buffer::new(2 * (x.len() / weight.len())));
    layer_norm(isa, x, weight, values(bias), epsilon as f32, &mut y, &mut stats);
    (y, stats)
}

/// The layer of these weights over rows of x.
fn layer(x: &[f32], weight: &FlexTensor) -> Linear {
    let shape = dims(weight);
    Linear { rows: x.len() / shape[1], input: shape[1], output: shape[0] }
}

/// Gradients of weights and bias.
fn parameter_grads(isa: Isa, weight: &FlexTensor, x: &[f32], dy: &[f32]) -> [FlexTensor; 2] {
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

impl Tokens for Flex {
    fn token_norm(x: FlexTensor, weight: FlexTensor, bias: FlexTensor, epsilon: f64, isa: Isa) -> FlexTensor {
        let (x, weight, bias) = (packed(x), packed(weight), packed(bias));
        pooled(normalise(&x, &weight, &bias, epsilon, isa).0, &dims(&x))
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
        let (mut dx, stats) = normalise(&x, &weight, &weight, epsilon, isa);
        let (dw, db) = layer_norm_grad(isa, values(&x), values(&weight), &stats, values(&dy), None, &mut dx);
        [pooled(dx, &dims(&x)), vector(dw), vector(db)]
    }

    fn branch_forward(tensors: [FlexTensor; 7], branch: Branch) -> (FlexTensor, BranchState<Self>) {
        let [x, norm_weight, norm_bias, first_weight, first_bias, second_weight, second_bias] = tensors.map(packed);
        let Branch { inner, epsilon, isa } = branch;
        let (h, _) = normalise(&x, &norm_weight, &norm_bias, epsilon, isa);
        let first = layer(&h, &first_weight);
        let (first_values, bias) = (values(&first_weight), values(&first_bias));
        let mut before = Buffer::new(first.rows * first.output);
        let (mixed, log_sums) = match inner {
            Inner::Attention { heads, causal } => {
                let shape = attending(&x, heads, causal);
                linear(isa, first, &h, first_values, bias, None, &mut before);
                let (mut mixed, mut log_sums) = (Buffer::new(shape.out_len()), Buffer::new(shape.sums_len()));
                attention(isa, shape, &before, &mut mixed, &mut log_sums);
                (mixed, Some(log_sums))
            }
            Inner::Mlp(activation) => {
                let mut mixed = Buffer::new(before.len());
                linear_activate(isa, first, &h, first_values, bias, activation, &mut mixed, &mut before);
                (mixed, None)
            }
        };
        // The branch ends as wide as it began.
        let mut y = h;
        let second = layer(&mixed, &second_weight);
        linear(isa, second, &mixed, values(&second_weight), values(&second_bias), Some(values(&x)), &mut y);
        let y = pooled(y, &dims(&x));
        let rows = |values: Buffer| {
            let columns = values.len() / first.rows;
            pooled(values, &[first.rows, columns])
        };
        let log_sums = log_sums.map(rows);
        let (mixed, before) = (rows(mixed), rows(before));
        let norm = [norm_weight, norm_bias];
        (y, BranchState { x, norm, first_weight, second_weight, mixed, before, log_sums, branch })
    }

    fn branch_backward(state: BranchState<Self>, dy: FlexTensor) -> [FlexTensor; 7] {
        let BranchState { x, norm, first_weight, second_weight, mixed, before, log_sums, branch } = state;
        let (Branch { inner, epsilon, isa }, dy) = (branch, packed(dy));
        let [d_second, d_second_bias] = parameter_grads(isa, &second_weight, values(&mixed), values(&dy));
        let second = layer(values(&mixed), &second_weight);
        let mut d_before = Buffer::new(values::<f32>(&before).len());
        match inner {
            Inner::Attention { heads, causal } => {
                let log_sums = log_sums.expect("attention keeps its sums");
                let mut d_mixed = Buffer::new(values::<f32>(&mixed).len());
                linear_input_grad(isa, second, values(&dy), values(&second_weight), None, &mut d_mixed);
                let (shape, all, sums) = (attending(&x, heads, causal), values(&before), values(&log_sums));
                attention_grad(isa, shape, all, values(&mixed), sums, &d_mixed, &mut d_before);
            }
            Inner::Mlp(_) => {
                let slopes = Some(values(&before));
                linear_input_grad(isa, second, values(&dy), values(&second_weight), slopes, &mut d_before);
            }
        }
        drop((mixed, before));
        let (mut h, stats) = normalise(&x, &norm[0], &norm[1], epsilon, isa);
        let [d_first, d_first_bias] = parameter_grads(isa, &first_weight, &h, &d_before);
        let dh = {
            let first = layer(&h, &first_weight);
            linear_input_grad(isa, first, &d_before, values(&first_weight), None, &mut h);
            h
        };
        let mut dx = Buffer::new(dh.len());
        let residual = Some(values(&dy));
        let (dw, db) = layer_norm_grad(isa, values(&x), values(&norm[0]), &stats, &dh, residual, &mut dx);
        [pooled(dx, &dims(&x)), vector(dw), vector(db), d_first, d_first_bias, d_second, d_second_bias]
    }
}
