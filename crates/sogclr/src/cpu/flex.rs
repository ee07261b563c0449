//! The operations on burn's CPU backend, in buffers that are used again from step to step.

use super::ops::{ChannelsLast, ChannelsLastGrad, NormGrads};
use crate::comm::Group;
use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Tensor, TensorData};
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};
use sogclr_kernels::{
    Buffer, Conv, Engine, Isa, MaxPool, NormInput, NormStats, Ranks, conv2d, conv2d_input_grad, conv2d_weight_grad,
    max_pool, max_pool_grad, mean_pool, mean_pool_grad, norm_apply, norm_backward, norm_stats,
};
use std::mem::MaybeUninit;

pub(super) type FlexTensor = FloatTensor<Flex>;

/// A pooled buffer as the memory of a tensor.
struct Pooled(Buffer);

impl AllocationController for Pooled {
    fn alloc_align(&self) -> usize {
        align_of::<f32>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let values: &[f32] = &self.0;
        // SAFETY: the bytes of initialised floats.
        Ok(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) })
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let values: &mut [f32] = &mut self.0;
        // SAFETY: as above; the caller writes initialised bytes, and every pattern of bytes is a float.
        Ok(unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) })
    }
}

pub(super) fn pooled(values: Buffer, shape: &[usize]) -> FlexTensor {
    let bytes = size_of_val::<[f32]>(&values);
    // SAFETY: a buffer is initialised over its whole length.
    let bytes = unsafe { Bytes::from_controller(Box::new(Pooled(values)), bytes) };
    FlexTensor::from_data(TensorData::from_bytes(bytes, shape.to_vec(), DType::F32))
}

pub(super) fn vector(values: Vec<f32>) -> FlexTensor {
    let len = values.len();
    FlexTensor::from_data(TensorData::new(values, [len]))
}

/// The tensor with its values in order.
pub(super) fn packed(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// The tensor as one that nobody else holds and whose memory is all its own.
fn owned(tensor: FlexTensor) -> FlexTensor {
    let tensor = packed(tensor);
    if tensor.is_unique() && tensor.bytes().len() == size_of_val(values(&tensor)) {
        return tensor;
    }
    let mut copy = Buffer::new(values(&tensor).len());
    copy.copy_from_slice(values(&tensor));
    pooled(copy, &dims(&tensor))
}

pub(super) fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("a packed f32 tensor")
}

fn values_mut(tensor: &mut FlexTensor) -> &mut [f32] {
    tensor.try_storage_mut().expect("an owned f32 tensor")
}

/// Lets `f` change the values of `tensors` where they lie, or gives them back untouched if they are on another device.
pub(crate) fn in_place(
    tensors: Vec<Tensor<1>>,
    f: impl FnOnce(&mut [&mut [f32]]),
) -> Result<Vec<Tensor<1>>, Vec<Tensor<1>>> {
    if !tensors.iter().all(|tensor| super::is_cpu(&tensor.device())) {
        return Err(tensors);
    }
    let primitive = |tensor: Tensor<1>| tensor.try_into_primitive::<Flex>().expect("a CPU tensor off the graph");
    let mut all: Vec<FlexTensor> = tensors.into_iter().map(|tensor| owned(primitive(tensor))).collect();
    f(&mut all.iter_mut().map(values_mut).collect::<Vec<_>>());
    Ok(all.into_iter().map(Tensor::from_primitive::<Flex>).collect())
}

pub(super) fn dims(tensor: &FlexTensor) -> Vec<usize> {
    tensor.layout().shape().as_slice().to_vec()
}

fn conv_shape(x: &FlexTensor, weight: &FlexTensor, stride: usize) -> Conv {
    let (x, w) = (dims(x), dims(weight));
    Conv { n: x[0], h: x[1], w: x[2], ci: x[3], co: w[0], k: w[2], stride, pad: w[2] / 2 }
}

fn pool_shape(x: &FlexTensor) -> MaxPool {
    let x = dims(x);
    MaxPool { n: x[0], h: x[1], w: x[2], c: x[3] }
}

/// The ranks of a group, as kernels know them.
fn with_ranks<T>(group: &Group, f: impl FnOnce(Ranks) -> T) -> T {
    f(Ranks { count: group.size(), sum: &|values| group.sum_f64(values) })
}

#[expect(clippy::too_many_arguments, reason = "the inputs of one formula")]
fn norm_forward(
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
    let channels = values(&weight).len();
    let stats = with_ranks(group, |ranks| norm_stats(isa, values(&x), channels, ranks));
    let scale: Vec<f32> =
        values(&weight).iter().zip(&stats.var).map(|(w, var)| w / (var + epsilon as f32).sqrt()).collect();
    let shift: Vec<f32> = (0..channels).map(|c| values(&bias)[c] - stats.mean[c] * scale[c]).collect();
    let mut y = Buffer::new(values(&x).len());
    norm_apply(isa, values(&x), residual.as_ref().map(values), &scale, &shift, relu, &mut y);
    (pooled(y, &dims(&x)), vector(stats.mean), vector(stats.var))
}

impl ChannelsLast for Flex {
    fn conv_last(x: FlexTensor, weight: FlexTensor, stride: usize, engine: Engine) -> FlexTensor {
        let (x, weight) = (packed(x), packed(weight));
        let shape = conv_shape(&x, &weight, stride);
        let mut y = Buffer::new(shape.y_len());
        conv2d(engine, shape, values(&x), values(&weight), &mut y);
        let (h, w) = shape.out();
        pooled(y, &[shape.n, h, w, shape.co])
    }

    fn max_pool_last(x: FlexTensor) -> FlexTensor {
        let x = packed(x);
        let shape = pool_shape(&x);
        let mut y = Buffer::new(shape.y_len());
        max_pool(shape, values(&x), &mut y);
        let (h, w) = shape.out();
        pooled(y, &[shape.n, h, w, shape.c])
    }

    fn mean_pool_last(x: FlexTensor) -> FlexTensor {
        let x = packed(x);
        let shape = pool_shape(&x);
        let mut y = Buffer::new(shape.n * shape.c);
        mean_pool(shape.c, values(&x), &mut y);
        pooled(y, &[shape.n, shape.c])
    }

    fn norm(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        relu: bool,
        epsilon: f64,
        isa: Isa,
        group: Group,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        norm_forward(x, weight, bias, None, relu, epsilon, isa, &group)
    }

    fn norm_add(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        residual: FlexTensor,
        relu: bool,
        epsilon: f64,
        isa: Isa,
        group: Group,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        norm_forward(x, weight, bias, Some(residual), relu, epsilon, isa, &group)
    }

    fn scale_shift(
        x: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        residual: FlexTensor,
        has_residual: bool,
        relu: bool,
        isa: Isa,
    ) -> FlexTensor {
        let (x, scale, shift, residual) = (packed(x), packed(scale), packed(shift), packed(residual));
        let mut y = Buffer::new(values(&x).len());
        let residual = has_residual.then(|| values(&residual));
        norm_apply(isa, values(&x), residual, values(&scale), values(&shift), relu, &mut y);
        pooled(y, &dims(&x))
    }
}

impl ChannelsLastGrad for Flex {
    fn conv_last_backward(
        x: FlexTensor,
        weight: FlexTensor,
        dy: FlexTensor,
        stride: usize,
        engine: Engine,
        wants_dx: bool,
    ) -> (Option<FlexTensor>, FlexTensor) {
        let (x, weight, dy) = (packed(x), packed(weight), packed(dy));
        let shape = conv_shape(&x, &weight, stride);
        let mut dw = Buffer::new(shape.w_len());
        conv2d_weight_grad(engine, shape, values(&x), values(&dy), &mut dw);
        let x_dims = dims(&x);
        drop(x);
        let dx = wants_dx.then(|| {
            let mut dx = Buffer::new(shape.x_len());
            conv2d_input_grad(engine, shape, values(&dy), values(&weight), &mut dx);
            pooled(dx, &x_dims)
        });
        (dx, pooled(dw, &dims(&weight)))
    }

    fn max_pool_last_backward(x: FlexTensor, y: FlexTensor, dy: FlexTensor) -> FlexTensor {
        let (x, y, dy) = (packed(x), packed(y), packed(dy));
        let mut dx = Buffer::new(values(&x).len());
        max_pool_grad(pool_shape(&x), values(&x), values(&y), values(&dy), &mut dx);
        pooled(dx, &dims(&x))
    }

    fn mean_pool_last_backward(dy: FlexTensor, shape: [usize; 4]) -> FlexTensor {
        let dy = packed(dy);
        let mut dx = Buffer::new(shape.iter().product());
        mean_pool_grad(shape[3], values(&dy), &mut dx);
        pooled(dx, &shape)
    }

    fn norm_backward(
        x: FlexTensor,
        weight: FlexTensor,
        mean: FlexTensor,
        var: FlexTensor,
        y: Option<FlexTensor>,
        dy: FlexTensor,
        wants_residual: bool,
        epsilon: f64,
        isa: Isa,
        group: &Group,
    ) -> NormGrads<Flex> {
        let (weight, y, mut dy) = (packed(weight), y.map(packed), owned(dy));
        let stats = NormStats { mean: values(&packed(mean)).to_vec(), var: values(&packed(var)).to_vec() };
        let gate = y.as_ref().map(values);
        let backward = |x: NormInput, dy: &mut [f32]| {
            with_ranks(group, |ranks| norm_backward(isa, x, gate, dy, &stats, values(&weight), epsilon as f32, ranks))
        };
        // Gradients take the place of what they are made of: dx that of dy, or of x where the residual takes dy's.
        let (grad, x, residual) = if wants_residual {
            let mut x = owned(x);
            let grad = backward(NormInput::BecomesGradient(values_mut(&mut x)), values_mut(&mut dy));
            (grad, x, Some(dy))
        } else {
            (backward(NormInput::Keep(values(&packed(x))), values_mut(&mut dy)), dy, None)
        };
        NormGrads { x, weight: vector(grad.weight), bias: vector(grad.bias), residual }
    }
}
