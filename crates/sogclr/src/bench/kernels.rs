//! The convolutions of a network, shape by shape, beside the fastest matrix product that the same threads reach.

use super::median;
use crate::encoder::{Compute, EncoderConfig, Precision};
use rayon::prelude::*;
use serde::Serialize;
use sogclr_kernels::{Buffer, Conv, Element, Engine, bf16, conv2d, conv2d_input_grad, conv2d_weight_grad};
use std::time::{Duration, Instant};

/// How long each measurement repeats.
const ENOUGH: Duration = Duration::from_millis(150);
/// Side of the matrices whose product gives the peak: their panels fit the cache.
const PEAK_SIDE: usize = 384;

/// One shape; speeds in GFLOP/s of the direct sum. Winograd's algorithm does that work with fewer products and so can
/// exceed the peak.
#[derive(Clone, Debug, Serialize)]
pub struct LayerSpeed {
    /// Convolutions of the network that have this shape.
    pub count: usize,
    /// Side of the input in pixels.
    pub size: usize,
    /// Channels that go in.
    pub input: usize,
    /// Channels that come out.
    pub output: usize,
    /// Side of the kernel in pixels.
    pub kernel: usize,
    /// Pixels from one place of the kernel to the next.
    pub stride: usize,
    /// GFLOP/s of the forward pass.
    pub forward: f64,
    /// GFLOP/s of the gradient of the input.
    pub input_grad: f64,
    /// GFLOP/s of the gradient of the weight.
    pub weight_grad: f64,
}

/// The convolutions of a network beside the machine's peak.
#[derive(Clone, Debug, Serialize)]
pub struct KernelSpeeds {
    /// GFLOP/s of the fastest matrix product on all threads.
    pub peak: f64,
    /// Every distinct shape, in the order of the network.
    pub layers: Vec<LayerSpeed>,
}

/// Measures every distinct convolution of `encoder` for `images` of `size` pixels, on the kernels of `compute`.
pub fn measure_kernels(
    encoder: &EncoderConfig,
    compute: &Compute,
    images: usize,
    size: usize,
    done: impl FnMut(&LayerSpeed),
) -> KernelSpeeds {
    let engine = compute.engine().expect("our kernels");
    match compute.precision() {
        Precision::F32 => measure::<f32>(encoder, engine, images, size, done),
        Precision::Bf16 => measure::<bf16>(encoder, engine, images, size, done),
    }
}

fn measure<T: Element>(
    encoder: &EncoderConfig,
    engine: Engine,
    images: usize,
    size: usize,
    mut done: impl FnMut(&LayerSpeed),
) -> KernelSpeeds {
    let peak = matmul_peak::<T>(engine);
    let mut layers = Vec::new();
    for (count, shape) in encoder.spec().convolutions(size, 3) {
        let conv = Conv { n: images, ..shape };
        let (mut x, mut w, mut y) = (filled::<T>(conv.x_len()), filled::<f32>(conv.w_len()), filled::<T>(conv.y_len()));
        let layer = LayerSpeed {
            count,
            size: conv.h,
            input: conv.ci,
            output: conv.co,
            kernel: conv.k,
            stride: conv.stride,
            forward: gflops(conv.flops(), || conv2d(engine, conv, &x, &w, &mut y)),
            input_grad: gflops(conv.flops(), || conv2d_input_grad(engine, conv, &y, &w, &mut x)),
            weight_grad: gflops(conv.flops(), || conv2d_weight_grad(engine, conv, &x, &y, &mut w)),
        };
        done(&layer);
        layers.push(layer);
    }
    KernelSpeeds { peak, layers }
}

fn filled<T: Element>(len: usize) -> Buffer<T> {
    let mut buffer = Buffer::of(len);
    buffer.iter_mut().enumerate().for_each(|(i, v)| *v = T::from_f32((i % 17) as f32 * 0.1 - 0.8));
    buffer
}

/// The fastest of many matrix products whose operands stay in the caches: ndarray's, one on each thread, and our own 1×1
/// convolution over all threads.
fn matmul_peak<T: Element>(engine: Engine) -> f64 {
    let (threads, side) = (rayon::current_num_threads(), PEAK_SIDE);
    let matrix = ndarray::Array2::<f32>::from_elem((side, side), 0.5);
    let theirs = || {
        (0..threads).into_par_iter().for_each(|_| {
            std::hint::black_box(matrix.dot(std::hint::black_box(&matrix)));
        });
    };
    let conv = Conv { n: side * threads, h: 1, w: 1, ci: side, co: side, k: 1, stride: 1, pad: 0 };
    let (x, w, mut y) = (filled::<T>(conv.x_len()), filled::<f32>(conv.w_len()), filled::<T>(conv.y_len()));
    let ours = || conv2d(engine, conv, &x, &w, &mut y);
    let best = |times: Vec<f64>| conv.flops() as f64 / times.into_iter().fold(f64::INFINITY, f64::min) / 1e9;
    best(times(theirs)).max(best(times(ours)))
}

/// Seconds of each of many repetitions.
fn times(mut work: impl FnMut()) -> Vec<f64> {
    work();
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < ENOUGH || times.len() < 3 {
        let one = Instant::now();
        work();
        times.push(one.elapsed().as_secs_f64());
    }
    times
}

fn gflops(flops: usize, work: impl FnMut()) -> f64 {
    flops as f64 / median(times(work)) / 1e9
}
