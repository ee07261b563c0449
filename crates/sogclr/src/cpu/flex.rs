//! The operations on burn's CPU backend, in buffers that are used again from step to step. Activations are f32 or bf16, and
//! what is made of them is of their type; weights, statistics and pooled features are f32.

use super::meeting::Meeting;
use super::norm::{
    kept_norm_gradients, norm_conv_again, norm_conv_forward, norm_conv_gradients, norm_forward, norm_max_pool_forward,
    norm_max_pool_gradients, scaled,
};
use super::ops::{ChannelsLast, ChannelsLastGrad, Norm, NormGrads};
use super::recipe::{Ingredients, Recipe};
use crate::comm::Group;
use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Tensor, TensorData};
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};
use bytemuck::Pod;
use sogclr_kernels::{
    Buffer, Conv, Element, Engine, Isa, MaxPool, Ranks, add_to, average_pool, average_pool_grad, bf16, conv2d,
    conv2d_input_grad, conv2d_weight_grad, max_pool, max_pool_grad, mean_pool, mean_pool_grad,
};
use std::mem::MaybeUninit;

pub(super) type FlexTensor = FloatTensor<Flex>;

/// A type of activations, to burn and to the kernels.
pub(super) trait Value: Element + burn::tensor::Element + Pod {}

impl Value for f32 {}
impl Value for bf16 {}

/// Calls a function for the type of a tensor's values.
macro_rules! typed {
    ($tensor:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $tensor.dtype() {
            DType::BF16 => $function::<bf16>($($argument),*),
            _ => $function::<f32>($($argument),*),
        }
    };
}

/// A pooled buffer as the memory of a tensor.
struct Pooled<T: Element>(Buffer<T>);

impl<T: Element> AllocationController for Pooled<T> {
    fn alloc_align(&self) -> usize {
        align_of::<T>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let values: &[T] = &self.0;
        // SAFETY: the bytes of initialised floats.
        Ok(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) })
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let values: &mut [T] = &mut self.0;
        // SAFETY: as above; the caller writes initialised bytes, and every pattern of bytes is a float.
        Ok(unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) })
    }
}

pub(super) fn pooled<T: Value>(values: Buffer<T>, shape: &[usize]) -> FlexTensor {
    let bytes = size_of_val::<[T]>(&values);
    // SAFETY: a buffer is initialised over its whole length.
    let bytes = unsafe { Bytes::from_controller(Box::new(Pooled(values)), bytes) };
    FlexTensor::from_data(TensorData::from_bytes(bytes, shape.to_vec(), T::dtype()))
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
pub(super) fn owned<T: Value>(tensor: FlexTensor) -> FlexTensor {
    let tensor = packed(tensor);
    if tensor.is_unique() && tensor.bytes().len() == size_of_val(values::<T>(&tensor)) {
        return tensor;
    }
    let mut copy = Buffer::<T>::of(values::<T>(&tensor).len());
    copy.copy_from_slice(values(&tensor));
    pooled(copy, &dims(&tensor))
}

pub(super) fn values<T: Value>(tensor: &FlexTensor) -> &[T] {
    tensor.as_slice().expect("a packed tensor of this type")
}

pub(super) fn values_mut<T: Value>(tensor: &mut FlexTensor) -> &mut [T] {
    tensor.try_storage_mut().expect("an owned tensor of this type")
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
    let mut all: Vec<FlexTensor> = tensors.into_iter().map(|tensor| owned::<f32>(primitive(tensor))).collect();
    f(&mut all.iter_mut().map(values_mut).collect::<Vec<_>>());
    Ok(all.into_iter().map(Tensor::from_primitive::<Flex>).collect())
}

pub(super) fn dims(tensor: &FlexTensor) -> Vec<usize> {
    tensor.layout().shape().as_slice().to_vec()
}

pub(super) fn conv_shape(x: &FlexTensor, weight: &FlexTensor, stride: usize) -> Conv {
    let (x, w) = (dims(x), dims(weight));
    Conv { n: x[0], h: x[1], w: x[2], ci: x[3], co: w[0], k: w[2], stride, pad: w[2] / 2 }
}

fn pool_shape(x: &FlexTensor) -> MaxPool {
    let x = dims(x);
    MaxPool { n: x[0], h: x[1], w: x[2], c: x[3] }
}

/// The ranks of a group, as kernels know them.
pub(super) fn with_ranks<T>(group: &Group, f: impl FnOnce(Ranks) -> T) -> T {
    f(Ranks { count: group.size(), sum: &|values| group.sum_f64(values) })
}

fn conv_forward<T: Value>(x: FlexTensor, weight: FlexTensor, stride: usize, engine: Engine) -> FlexTensor {
    let (x, weight) = (packed(x), packed(weight));
    let shape = conv_shape(&x, &weight, stride);
    let mut y = Buffer::<T>::of(shape.y_len());
    conv2d(engine, shape, values(&x), values(&weight), &mut y);
    let (h, w) = shape.out();
    pooled(y, &[shape.n, h, w, shape.co])
}

fn conv_backward<T: Value>(
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
    conv2d_weight_grad::<T>(engine, shape, values(&x), values(&dy), &mut dw);
    let x_dims = dims(&x);
    drop(x);
    let dx = wants_dx.then(|| {
        let mut dx = Buffer::<T>::of(shape.x_len());
        conv2d_input_grad(engine, shape, values(&dy), values(&weight), &mut dx);
        pooled(dx, &x_dims)
    });
    (dx, pooled(dw, &dims(&weight)))
}

fn sum<T: Value>(a: FlexTensor, b: FlexTensor, isa: Isa) -> FlexTensor {
    let (mut a, b) = (owned::<T>(a), packed(b));
    add_to(isa, values_mut::<T>(&mut a), values(&b));
    a
}

pub(super) fn max_pool_forward<T: Value>(x: FlexTensor) -> FlexTensor {
    let x = packed(x);
    let shape = pool_shape(&x);
    let mut y = Buffer::<T>::of(shape.y_len());
    max_pool(shape, values(&x), &mut y);
    let (h, w) = shape.out();
    pooled(y, &[shape.n, h, w, shape.c])
}

pub(super) fn max_pool_backward<T: Value>(x: FlexTensor, y: FlexTensor, dy: FlexTensor) -> FlexTensor {
    let (x, y, dy) = (packed(x), packed(y), packed(dy));
    let mut dx = Buffer::<T>::of(values::<T>(&x).len());
    max_pool_grad(pool_shape(&x), values(&x), values(&y), values(&dy), &mut dx);
    pooled(dx, &dims(&x))
}

fn average_pool_forward<T: Value>(x: FlexTensor) -> FlexTensor {
    let x = packed(x);
    let MaxPool { n, h, w, c } = pool_shape(&x);
    let mut y = Buffer::<T>::of(n * h * w * c / 4);
    average_pool([h, w, c], values(&x), &mut y);
    pooled(y, &[n, h / 2, w / 2, c])
}

fn average_pool_backward<T: Value>(dy: FlexTensor) -> FlexTensor {
    let dy = packed(dy);
    let MaxPool { n, h, w, c } = pool_shape(&dy);
    let mut dx = Buffer::<T>::of(4 * n * h * w * c);
    average_pool_grad([2 * h, 2 * w, c], values(&dy), &mut dx);
    pooled(dx, &[n, 2 * h, 2 * w, c])
}

fn mean_pool_forward<T: Value>(x: FlexTensor) -> FlexTensor {
    let x = packed(x);
    let shape = pool_shape(&x);
    let mut y = Buffer::new(shape.n * shape.c);
    mean_pool::<T>(shape.c, values(&x), &mut y);
    pooled(y, &[shape.n, shape.c])
}

fn mean_pool_backward<T: Value>(dy: FlexTensor, shape: [usize; 4]) -> FlexTensor {
    let dy = packed(dy);
    let mut dx = Buffer::<T>::of(shape.iter().product());
    mean_pool_grad(shape[3], values(&dy), &mut dx);
    pooled(dx, &shape)
}

impl ChannelsLast for Flex {
    fn conv_last(x: FlexTensor, weight: FlexTensor, stride: usize, engine: Engine) -> FlexTensor {
        typed!(x, conv_forward(x, weight, stride, engine))
    }

    fn max_pool_last(x: FlexTensor) -> FlexTensor {
        typed!(x, max_pool_forward(x))
    }

    fn average_pool_last(x: FlexTensor) -> FlexTensor {
        typed!(x, average_pool_forward(x))
    }

    fn mean_pool_last(x: FlexTensor) -> FlexTensor {
        typed!(x, mean_pool_forward(x))
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
        typed!(x, norm_forward(x, weight, bias, None, relu, epsilon, isa, &group))
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
        _: Recipe,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        typed!(x, norm_forward(x, weight, bias, Some(residual), relu, epsilon, isa, &group))
    }

    fn norm_conv(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        conv: FlexTensor,
        stride: usize,
        epsilon: f64,
        engine: Engine,
        group: Group,
        _: Recipe,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        typed!(x, norm_conv_forward(x, weight, bias, conv, stride, epsilon, engine, &group))
    }

    fn norm_max_pool(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        epsilon: f64,
        isa: Isa,
        group: Group,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        typed!(x, norm_max_pool_forward(x, weight, bias, epsilon, isa, &group))
    }

    fn meet(x: FlexTensor, _: Meeting, _: Isa) -> FlexTensor {
        x
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
        typed!(x, scaled(x, scale, shift, has_residual.then_some(residual), relu, isa))
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
        typed!(x, conv_backward(x, weight, dy, stride, engine, wants_dx))
    }

    fn add_gradients(a: FlexTensor, b: FlexTensor, isa: Isa) -> FlexTensor {
        typed!(a, sum(a, b, isa))
    }

    fn max_pool_last_backward(x: FlexTensor, y: FlexTensor, dy: FlexTensor) -> FlexTensor {
        typed!(x, max_pool_backward(x, y, dy))
    }

    fn average_pool_last_backward(dy: FlexTensor) -> FlexTensor {
        typed!(dy, average_pool_backward(dy))
    }

    fn mean_pool_last_backward(dy: FlexTensor, shape: [usize; 4], dtype: DType) -> FlexTensor {
        match dtype {
            DType::BF16 => mean_pool_backward::<bf16>(dy, shape),
            _ => mean_pool_backward::<f32>(dy, shape),
        }
    }

    fn norm_backward(norm: Norm<Flex>, y: Option<FlexTensor>, dy: FlexTensor, wants_residual: bool) -> NormGrads<Flex> {
        typed!(dy, kept_norm_gradients(norm, y, dy, wants_residual))
    }

    fn norm_conv_backward(
        norm: Norm<Flex>,
        conv: FlexTensor,
        dy: FlexTensor,
        stride: usize,
        engine: Engine,
    ) -> (NormGrads<Flex>, FlexTensor) {
        typed!(dy, norm_conv_gradients(norm, conv, dy, stride, engine))
    }

    fn norm_conv_again(of: Ingredients<Flex>) -> FlexTensor {
        typed!(of.norm.x, norm_conv_again(of))
    }

    fn norm_max_pool_backward(norm: Norm<Flex>, y: FlexTensor, dy: FlexTensor) -> NormGrads<Flex> {
        typed!(dy, norm_max_pool_gradients(norm, y, dy))
    }
}
