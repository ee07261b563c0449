//! Batch norm on burn's CPU backend, alone and with what reads its rectified output: a convolution or the stem's maximum.

use super::flex::{
    FlexTensor, Value, conv_shape, dims, max_pool_backward, max_pool_forward, owned, packed, pooled, values,
    values_mut, vector, with_ranks,
};
use super::ops::{Norm, NormGrads};
use super::recipe::Ingredients;
use crate::comm::Group;
use burn::backend::Flex;
use sogclr_kernels::{
    Buffer, Engine, Gate, Isa, NormInput, NormRelu, NormStats, conv2d_input_grad, conv2d_of_norm,
    conv2d_of_norm_weight_grad, norm_apply, norm_backward, norm_stats,
};

#[expect(clippy::too_many_arguments, reason = "the inputs of one formula")]
pub(super) fn norm_forward<T: Value>(
    x: FlexTensor,
    weight: FlexTensor,
    bias: FlexTensor,
    residual: Option<FlexTensor>,
    relu: bool,
    epsilon: f64,
    isa: Isa,
    group: &Group,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let (x, weight, bias, residual) = (packed(x), packed(weight), packed(bias), residual.map(packed));
    let (channels, weight, bias) = (dims(&weight)[0], values::<f32>(&weight), values::<f32>(&bias));
    let stats = with_ranks(group, |ranks| norm_stats::<T>(isa, values(&x), channels, ranks));
    let (scale, shift) = line(weight, bias, &stats, epsilon);
    let mut y = Buffer::<T>::of(values::<T>(&x).len());
    norm_apply(isa, values(&x), residual.as_ref().map(values), &scale, &shift, relu, &mut y);
    (pooled(y, &dims(&x)), vector(stats.mean), vector(stats.var))
}

/// Scale and shift of a norm: γ/√(var+ε) and β − μ·scale.
fn line(weight: &[f32], bias: &[f32], stats: &NormStats, epsilon: f64) -> (Vec<f32>, Vec<f32>) {
    let scale: Vec<f32> = weight.iter().zip(&stats.var).map(|(w, var)| w / (var + epsilon as f32).sqrt()).collect();
    let shift = (0..scale.len()).map(|c| bias[c] - stats.mean[c] * scale[c]).collect();
    (scale, shift)
}

fn stats_of(norm: &Norm<Flex>) -> NormStats {
    let vec = |tensor: &FlexTensor| values::<f32>(&packed(tensor.clone())).to_vec();
    NormStats { mean: vec(&norm.mean), var: vec(&norm.var) }
}

/// Scale and shift again, for a backward pass.
fn line_of(norm: &Norm<Flex>) -> (Vec<f32>, Vec<f32>) {
    let (weight, bias) = (packed(norm.weight.clone()), packed(norm.bias.clone()));
    line(values(&weight), values(&bias), &stats_of(norm), norm.epsilon)
}

fn norm_gradients<T: Value>(norm: Norm<Flex>, gate: Gate<T>, dy: FlexTensor, wants_residual: bool) -> NormGrads<Flex> {
    let (stats, weight, mut dy) = (stats_of(&norm), packed(norm.weight), owned::<T>(dy));
    let Norm { x, epsilon, isa, group, .. } = norm;
    let backward = |x: NormInput<T>, dy: &mut [T]| {
        with_ranks(&group, |ranks| norm_backward(isa, x, gate, dy, &stats, values(&weight), epsilon as f32, ranks))
    };
    // Gradients take the place of what they are made of: dx that of dy, or of x where the residual takes dy's.
    let (grad, x, residual) = if wants_residual {
        let mut x = owned::<T>(x);
        let grad = backward(NormInput::BecomesGradient(values_mut(&mut x)), values_mut(&mut dy));
        (grad, x, Some(dy))
    } else {
        (backward(NormInput::Keep(values(&packed(x))), values_mut(&mut dy)), dy, None)
    };
    NormGrads { x, weight: vector(grad.weight), bias: vector(grad.bias), residual }
}

pub(super) fn kept_norm_gradients<T: Value>(
    norm: Norm<Flex>,
    y: Option<FlexTensor>,
    dy: FlexTensor,
    wants_residual: bool,
) -> NormGrads<Flex> {
    let y = y.map(packed);
    let gate = y.as_ref().map_or(Gate::Open, |y| Gate::Output(values::<T>(y)));
    norm_gradients(norm, gate, dy, wants_residual)
}

#[expect(clippy::too_many_arguments, reason = "the inputs of one formula")]
pub(super) fn norm_conv_forward<T: Value>(
    x: FlexTensor,
    weight: FlexTensor,
    bias: FlexTensor,
    conv: FlexTensor,
    stride: usize,
    epsilon: f64,
    engine: Engine,
    group: &Group,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let (x, weight, bias, conv) = (packed(x), packed(weight), packed(bias), packed(conv));
    let shape = conv_shape(&x, &conv, stride);
    let stats = with_ranks(group, |ranks| norm_stats::<T>(engine.isa, values(&x), shape.ci, ranks));
    let (scale, shift) = line(values(&weight), values(&bias), &stats, epsilon);
    let mut y = Buffer::<T>::of(shape.y_len());
    let norm = NormRelu { scale: &scale, shift: &shift };
    conv2d_of_norm(engine, shape, values(&x), norm, values(&conv), &mut y);
    let (h, w) = shape.out();
    (pooled(y, &[shape.n, h, w, shape.co]), vector(stats.mean), vector(stats.var))
}

/// The convolution's output from statistics that are known.
pub(super) fn norm_conv_again<T: Value>(of: Ingredients<Flex>) -> FlexTensor {
    let (x, conv) = (packed(of.norm.x.clone()), packed(of.conv));
    let (shape, (scale, shift)) = (conv_shape(&x, &conv, of.stride), line_of(&of.norm));
    let mut y = Buffer::<T>::of(shape.y_len());
    let norm = NormRelu { scale: &scale, shift: &shift };
    conv2d_of_norm(of.engine, shape, values(&x), norm, values(&conv), &mut y);
    let (h, w) = shape.out();
    pooled(y, &[shape.n, h, w, shape.co])
}

pub(super) fn norm_conv_gradients<T: Value>(
    mut norm: Norm<Flex>,
    conv: FlexTensor,
    dy: FlexTensor,
    stride: usize,
    engine: Engine,
) -> (NormGrads<Flex>, FlexTensor) {
    norm.x = packed(norm.x);
    let (conv, dy) = (packed(conv), packed(dy));
    let shape = conv_shape(&norm.x, &conv, stride);
    let (scale, shift) = line_of(&norm);
    let read = NormRelu { scale: &scale, shift: &shift };
    let mut dw = Buffer::new(shape.w_len());
    conv2d_of_norm_weight_grad::<T>(engine, shape, values(&norm.x), read, values(&dy), &mut dw);
    let mut dx = Buffer::<T>::of(shape.x_len());
    conv2d_input_grad(engine, shape, values(&dy), values(&conv), &mut dx);
    drop(dy);
    let dx = pooled(dx, &dims(&norm.x));
    (norm_gradients(norm, Gate::<T>::Input(read), dx, false), pooled(dw, &dims(&conv)))
}

/// The norm's output is there until its maximum is, and once more on the way back.
pub(super) fn norm_max_pool_forward<T: Value>(
    x: FlexTensor,
    weight: FlexTensor,
    bias: FlexTensor,
    epsilon: f64,
    isa: Isa,
    group: &Group,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let (y, mean, var) = norm_forward::<T>(x, weight, bias, None, true, epsilon, isa, group);
    (max_pool_forward::<T>(y), mean, var)
}

pub(super) fn norm_max_pool_gradients<T: Value>(
    mut norm: Norm<Flex>,
    y: FlexTensor,
    dy: FlexTensor,
) -> NormGrads<Flex> {
    norm.x = packed(norm.x);
    let (scale, shift) = line_of(&norm);
    let mut read = Buffer::<T>::of(values::<T>(&norm.x).len());
    norm_apply(norm.isa, values(&norm.x), None, &scale, &shift, true, &mut read);
    let dx = max_pool_backward::<T>(pooled(read, &dims(&norm.x)), y, dy);
    norm_gradients(norm, Gate::<T>::Input(NormRelu { scale: &scale, shift: &shift }), dx, false)
}

pub(super) fn scaled<T: Value>(
    x: FlexTensor,
    scale: FlexTensor,
    shift: FlexTensor,
    residual: Option<FlexTensor>,
    relu: bool,
    isa: Isa,
) -> FlexTensor {
    let (x, scale, shift, residual) = (packed(x), packed(scale), packed(shift), residual.map(packed));
    let mut y = Buffer::<T>::of(values::<T>(&x).len());
    let residual = residual.as_ref().map(values);
    norm_apply(isa, values(&x), residual, values(&scale), values(&shift), relu, &mut y);
    pooled(y, &dims(&x))
}
