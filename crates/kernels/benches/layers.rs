//! `cargo bench -p sogclr-kernels [FILTER]`: GFLOP/s of single convolutions, with and without Winograd, and GB/s of batch
//! norm. `sogclr bench kernels` measures the layers of a network.

use sogclr_kernels::{
    Buffer, Conv, Engine, Gate, Isa, NormInput, Ranks, conv2d, conv2d_input_grad, conv2d_weight_grad, norm_apply,
    norm_backward, norm_stats,
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

fn filled(len: usize) -> Buffer {
    let mut buffer = Buffer::new(len);
    buffer.iter_mut().enumerate().for_each(|(i, v)| *v = (i % 17) as f32 * 0.1 - 0.8);
    buffer
}

fn main() {
    let filter = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    let isa = Isa::best();
    println!("{isa}, {} threads", rayon::current_num_threads());
    for [n, side, ci, co, k, stride] in [
        [128, 32, 16, 16, 3, 1],
        [128, 8, 64, 64, 3, 1],
        [64, 16, 128, 128, 3, 1],
        [64, 4, 512, 512, 3, 1],
        [64, 16, 128, 256, 3, 2],
        [8, 56, 64, 256, 1, 1],
        [8, 14, 1024, 256, 1, 1],
        [8, 224, 3, 64, 7, 2],
    ] {
        let name = format!("conv {n}x{side}x{side} {ci}->{co} {k}x{k}/{stride}");
        if !name.contains(&filter) {
            continue;
        }
        let c = Conv { n, h: side, w: side, ci, co, k, stride, pad: k / 2 };
        let (mut x, mut w, mut y) = (filled(c.x_len()), filled(c.w_len()), filled(c.y_len()));
        for winograd in [true, false] {
            let engine = Engine { isa, winograd };
            let speed = |seconds: f64| c.flops() as f64 / seconds / 1e9;
            let forward = speed(median(|| conv2d(engine, c, &x, &w, &mut y)));
            let dx = speed(median(|| conv2d_input_grad(engine, c, &y, &w, &mut x)));
            let dw = speed(median(|| conv2d_weight_grad(engine, c, &x, &y, &mut w)));
            let way = if winograd { "chosen" } else { "direct" };
            println!("{name:34} {way}: forward {forward:4.0}, dx {dx:4.0}, dw {dw:4.0} GFLOP/s");
        }
    }
    for (pixels, channels) in [(131_072, 16), (65_536, 64), (6_272, 1024)] {
        let name = format!("norm {pixels}x{channels}");
        if !name.contains(&filter) {
            continue;
        }
        let len = pixels * channels;
        let (x, mut y, mut dy) = (filled(len), filled(len), filled(len));
        let (scale, shift) = (vec![1.0; channels], vec![0.1; channels]);
        let stats = norm_stats(isa, &x, channels, Ranks::ALONE);
        let speed = |passes: usize, seconds: f64| (passes * len * 4) as f64 / seconds / 1e9;
        let sums = speed(1, median(|| drop(norm_stats(isa, &x, channels, Ranks::ALONE))));
        let apply = speed(2, median(|| norm_apply(isa, &x, None, &scale, &shift, true, &mut y)));
        let backward = median(|| {
            drop(norm_backward(isa, NormInput::Keep(&x), Gate::Output(&y), &mut dy, &stats, &scale, 1e-5, Ranks::ALONE))
        });
        println!("{name:34} stats {sums:.1}, apply {apply:.1}, backward {:.1} GB/s", speed(7, backward));
    }
}
