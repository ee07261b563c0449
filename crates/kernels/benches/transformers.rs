//! `cargo bench -p sogclr-kernels --bench transformers [FILTER]`: GFLOP/s of the linear layers and the attention of a ViT-small of
//! 8 images of 224 pixels, and GB/s of its layer norm, with rows of f32 and of bf16.

use sogclr_kernels::{
    Activation, Attention, Buffer, Element, Isa, Linear, attention, attention_grad, bf16, layer_norm, layer_norm_grad,
    linear, linear_activate, linear_input_grad, linear_weight_grad,
};
use std::time::{Duration, Instant};

/// Seconds of the median repetition.
fn median(mut work: impl FnMut()) -> f64 {
    work();
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_millis(300) {
        let one = Instant::now();
        work();
        times.push(one.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn filled<T: Element>(len: usize) -> Buffer<T> {
    let mut buffer = Buffer::of(len);
    buffer.iter_mut().enumerate().for_each(|(i, v)| *v = T::from_f32((i % 17) as f32 * 0.1 - 0.8));
    buffer
}

fn main() {
    let filter = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    println!("{}, {} threads", Isa::best(), rayon::current_num_threads());
    measure::<f32>("f32", &filter);
    measure::<bf16>("bf16", &filter);
}

fn measure<T: Element>(values: &str, filter: &str) {
    let isa = Isa::best();
    for [rows, input, output] in
        [[1576, 384, 1152], [1576, 384, 384], [1576, 384, 1536], [1576, 1536, 384], [416, 128, 512]]
    {
        let name = format!("{values} linear {rows}x{input}->{output}");
        if !name.contains(filter) {
            continue;
        }
        let shape = Linear { rows, input, output };
        let (mut x, mut w, mut b) = (filled::<T>(rows * input), filled(output * input), filled(output));
        let (mut y, mut slope) = (filled::<T>(rows * output), filled(rows * output));
        let speed = |seconds: f64| 2e-9 * (rows * input * output) as f64 / seconds;
        let forward = speed(median(|| linear(isa, shape, &x, &w, &b, None, &mut y)));
        let gelu = speed(median(|| linear_activate(isa, shape, &x, &w, &b, Activation::Gelu, &mut y, &mut slope)));
        let dx = speed(median(|| linear_input_grad(isa, shape, &y, &w, None, &mut x)));
        let dw = speed(median(|| linear_weight_grad(isa, shape, &x, &y, &mut w, &mut b)));
        println!("{name:32} forward {forward:4.0}, with GELU {gelu:4.0}, dx {dx:4.0}, dw {dw:4.0} GFLOP/s");
    }
    for (n, length, heads, size, causal) in [(8, 197, 6, 64, false), (16, 26, 8, 16, true)] {
        let name = format!("{values} attention {n}x{length} {heads}x{size}");
        if !name.contains(filter) {
            continue;
        }
        let shape = Attention { n, length, heads, size, causal };
        let (all, mut out, mut sums) =
            (filled::<T>(3 * shape.out_len()), filled(shape.out_len()), filled(shape.sums_len()));
        let mut d_all = filled(all.len());
        let product = 2e-9 * (n * heads * length * length * size) as f64;
        let forward = 2.0 * product / median(|| attention(isa, shape, &all, &mut out, &mut sums));
        let d_out = filled(out.len());
        let backward = 5.0 * product / median(|| attention_grad(isa, shape, &all, &out, &sums, &d_out, &mut d_all));
        println!("{name:32} forward {forward:4.0}, backward {backward:4.0} GFLOP/s");
    }
    let (rows, width) = (1576, 384);
    let name = format!("{values} layer norm {rows}x{width}");
    if name.contains(filter) {
        let (x, mut y, mut stats) = (filled(rows * width), filled::<T>(rows * width), filled(2 * rows));
        let (w, b) = (filled(width), filled(width));
        let bytes = |sums: usize, values: usize| (rows * width * (4 * sums + size_of::<T>() * values)) as f64 / 1e9;
        let forward = bytes(1, 1) / median(|| layer_norm(isa, &x, &w, &b, 1e-6, &mut y, &mut stats));
        let (dy, other, mut dx) = (filled::<T>(y.len()), filled(y.len()), filled(y.len()));
        let backward = median(|| drop(layer_norm_grad(isa, &x, &w, &stats, &dy, Some(&other), &mut dx)));
        println!("{name:32} forward {forward:.1}, backward {:.1} GB/s", bytes(3, 1) / backward);
    }
}
