//! The convolutions of a network, shape by shape, beside the fastest matrix product that the same threads reach.

use super::median;
use crate::encoder::EncoderConfig;
use rayon::prelude::*;
use serde::Serialize;
use sogclr_kernels::{Buffer, Conv, conv2d, conv2d_input_grad, conv2d_weight_grad};
use std::time::{Duration, Instant};

/// How long each measurement repeats.
const ENOUGH: Duration = Duration::from_millis(150);
/// Side of the matrices whose product gives the peak: their panels fit the cache.
const PEAK_SIDE: usize = 384;

/// One shape; speeds in GFLOP/s of the direct sum, which Winograd's algorithm can exceed the peak by.
#[derive(Clone, Debug, Serialize)]
pub struct LayerReport {
    pub count: usize,
    pub size: usize,
    pub input: usize,
    pub output: usize,
    pub kernel: usize,
    pub stride: usize,
    pub forward: f64,
    pub input_grad: f64,
    pub weight_grad: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct KernelReport {
    /// GFLOP/s of a matrix product on all threads.
    pub peak: f64,
    pub layers: Vec<LayerReport>,
}

/// Measures every distinct convolution of `encoder` for `images` of `size` pixels.
pub fn measure_kernels(
    encoder: &EncoderConfig,
    images: usize,
    size: usize,
    mut done: impl FnMut(&LayerReport),
) -> KernelReport {
    let peak = matmul_peak();
    let mut layers = Vec::new();
    for (count, shape) in encoder.convolutions(size) {
        let conv = Conv { n: images, ..shape };
        let filled = |len: usize| -> Buffer {
            let mut buffer = Buffer::new(len);
            buffer.iter_mut().enumerate().for_each(|(i, v)| *v = (i % 17) as f32 * 0.1 - 0.8);
            buffer
        };
        let (mut x, mut w, mut y) = (filled(conv.x_len()), filled(conv.w_len()), filled(conv.y_len()));
        let layer = LayerReport {
            count,
            size: conv.h,
            input: conv.ci,
            output: conv.co,
            kernel: conv.k,
            stride: conv.stride,
            forward: gflops(conv.flops(), || conv2d(conv, &x, &w, &mut y)),
            input_grad: gflops(conv.flops(), || conv2d_input_grad(conv, &y, &w, &mut x)),
            weight_grad: gflops(conv.flops(), || conv2d_weight_grad(conv, &x, &y, &mut w)),
        };
        done(&layer);
        layers.push(layer);
    }
    KernelReport { peak, layers }
}

/// Each thread multiplies matrices of its own: no waiting, no memory traffic.
fn matmul_peak() -> f64 {
    let threads = rayon::current_num_threads();
    let side = PEAK_SIDE;
    let matrix = ndarray::Array2::<f32>::from_elem((side, side), 0.5);
    let flops = 2 * side * side * side * threads;
    gflops(flops, || {
        (0..threads).into_par_iter().for_each(|_| {
            std::hint::black_box(matrix.dot(std::hint::black_box(&matrix)));
        });
    })
}

fn gflops(flops: usize, mut work: impl FnMut()) -> f64 {
    work();
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < ENOUGH || times.len() < 3 {
        let one = Instant::now();
        work();
        times.push(one.elapsed().as_secs_f64());
    }
    flops as f64 / median(times) / 1e9
}
