//! The convolutions of a network, shape by shape, beside what binds them: the fastest matrix product that the same threads reach,
//! or the memory.

use super::median;
use crate::encoder::{Compute, EncoderConfig, Precision};
use rayon::prelude::*;
use serde::Serialize;
use sogclr_kernels::{Buffer, Conv, Element, Engine, add_to, bf16, conv2d, conv2d_input_grad, conv2d_weight_grad};
use std::time::{Duration, Instant};

/// How long each measurement repeats.
const ENOUGH: Duration = Duration::from_millis(150);
/// Side of the matrices whose product gives the peak: their panels fit the cache.
const PEAK_SIDE: usize = 384;
/// Floats of each of the two buffers whose sum gives the speed of the memory: more than the caches hold.
const STREAM: usize = 1 << 24;

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
    /// GFLOP/s that the peak of the products allows, or the memory where that is less.
    pub limit: f64,
    /// Whether the memory binds: inputs, weights and outputs, each once, take longer than the direct sum at its peak.
    pub is_memory_bound: bool,
}

/// The convolutions of a network beside the machine's peak.
#[derive(Clone, Debug, Serialize)]
pub struct KernelSpeeds {
    /// GFLOP/s of the fastest matrix product on all threads.
    pub peak: f64,
    /// GB/s of large sums, read and written, on all threads.
    pub bandwidth: f64,
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
    let (peak, bandwidth) = (matmul_peak::<T>(engine), bandwidth(engine));
    let mut layers = Vec::new();
    for (count, shape) in encoder.spec().convolutions(size, 3) {
        let conv = Conv { n: images, ..shape };
        let (mut x, mut w, mut y) = (filled::<T>(conv.x_len()), filled::<f32>(conv.w_len()), filled::<T>(conv.y_len()));
        let (limit, is_memory_bound) = limit(conv.flops(), bytes::<T>(&conv), peak, bandwidth);
        let layer = LayerSpeed {
            limit,
            is_memory_bound,
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
    KernelSpeeds { peak, bandwidth, layers }
}

/// GFLOP/s of `flops` on `bytes` that arithmetic or memory allow, and whether it is the memory.
fn limit(flops: usize, bytes: usize, peak: f64, bandwidth: f64) -> (f64, bool) {
    let by_memory = flops as f64 / bytes as f64 * bandwidth;
    (peak.min(by_memory), by_memory < peak)
}

/// Of input, weights and output: in each direction two are read and one is written.
fn bytes<T>(conv: &Conv) -> usize {
    (conv.x_len() + conv.y_len()) * size_of::<T>() + conv.w_len() * size_of::<f32>()
}

/// GB/s of a sum in place, which reads two values and writes one.
fn bandwidth(engine: Engine) -> f64 {
    let (mut a, b) = (filled::<f32>(STREAM), filled::<f32>(STREAM));
    let moved = 3 * STREAM * size_of::<f32>();
    let best = times(|| add_to(engine.isa, &mut a, &b)).into_iter().fold(f64::INFINITY, f64::min);
    moved as f64 / best / 1e9
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

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 flops for each byte at 50 GB/s are 400 GFLOP/s.
    #[test]
    fn what_is_less_binds() {
        assert_eq!(limit(8000, 1000, 300.0, 50.0), (300.0, false));
        assert_eq!(limit(8000, 1000, 500.0, 50.0), (400.0, true));
    }

    #[test]
    fn a_layer_moves_its_input_its_output_and_its_weights() {
        let conv = Conv { n: 2, h: 4, w: 4, ci: 3, co: 5, k: 1, stride: 2, pad: 0 };
        assert_eq!(bytes::<f32>(&conv), 4 * (2 * 16 * 3 + 2 * 4 * 5 + 15));
        assert_eq!(bytes::<bf16>(&conv), 2 * (2 * 16 * 3 + 2 * 4 * 5) + 4 * 15);
    }
}
