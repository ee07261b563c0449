//! The kernels of augmentation against plain loops, to the last bit, under each instruction set of this CPU.

use sogclr_kernels::{Colour, Isa, colour, mean_luma, normalised_pixels, planes_of, separable};

fn bytes(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 16) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Pixels of random colours between grey, black, white and pure ones, which have a hue of their own or none.
fn planes(pixels: usize) -> Vec<f32> {
    let corners =
        [[128, 128, 128], [0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 255], [7, 7, 9], [9, 7, 7], [1, 0, 0]];
    let random = bytes(3 * pixels, 5);
    let value = |channel: usize, pixel: usize| match pixel % 5 {
        0 => corners[pixel / 5 % corners.len()][channel],
        _ => random[3 * pixel + channel],
    };
    (0..3)
        .flat_map(|channel| (0..pixels).map(move |pixel| (channel, pixel)))
        .map(|(c, p)| f32::from(value(c, p)) / 255.0)
        .collect()
}

fn luma([r, g, b]: [f32; 3]) -> f32 {
    0.2989 * r + 0.587 * g + 0.114 * b
}

/// One operation on one pixel, as the formulas have it.
fn plain([r, g, b]: [f32; 3], step: Colour) -> [f32; 3] {
    match step {
        Colour::Brightness(f) => [r, g, b].map(|v| (v * f).clamp(0.0, 1.0)),
        Colour::Contrast(f, shift) => [r, g, b].map(|v| (f * v + shift).clamp(0.0, 1.0)),
        Colour::Saturation(f) => {
            let grey = (1.0 - f) * luma([r, g, b]);
            [r, g, b].map(|v| (f * v + grey).clamp(0.0, 1.0))
        }
        Colour::Grey => [luma([r, g, b]); 3],
        Colour::Hue(shift) => {
            let (max, min) = (r.max(g).max(b), r.min(g).min(b));
            let range = max - min;
            if range == 0.0 {
                return [r, g, b];
            }
            let [rc, gc, bc] = [r, g, b].map(|v| (max - v) / range);
            let sector = if max == r {
                bc - gc
            } else if max == g {
                2.0 + rc - bc
            } else {
                4.0 + gc - rc
            };
            let turned = (sector / 6.0 + 1.0 + shift).rem_euclid(1.0) * 6.0;
            let (index, fraction) = (turned.floor(), turned - turned.floor());
            let s = range / max;
            let p = (max * (1.0 - s)).clamp(0.0, 1.0);
            let q = (max * (1.0 - s * fraction)).clamp(0.0, 1.0);
            let t = (max * (1.0 - s * (1.0 - fraction))).clamp(0.0, 1.0);
            match index as u32 % 6 {
                0 => [max, t, p],
                1 => [q, max, p],
                2 => [p, max, t],
                3 => [p, q, max],
                4 => [t, p, max],
                _ => [max, p, q],
            }
        }
    }
}

#[test]
fn colours_are_those_of_the_formulas_to_the_last_bit() {
    let shifts = (0..=24).map(|k| Colour::Hue(k as f32 / 24.0 - 0.5));
    let single = shifts.map(|step| vec![step]);
    let chain =
        [Colour::Brightness(1.4), Colour::Hue(0.1), Colour::Contrast(0.6, 0.21), Colour::Saturation(1.5), Colour::Grey];
    let chains = (1..=chain.len()).map(|count| chain[..count].to_vec());
    for steps in single.chain(chains) {
        for pixels in [0, 1, 127, 129, 1000] {
            let image = planes(pixels);
            for isa in Isa::available() {
                let mut ours = image.clone();
                colour(isa, &mut ours, &steps);
                for pixel in 0..pixels {
                    let at = [pixel, pixels + pixel, 2 * pixels + pixel];
                    let want = steps.iter().fold(at.map(|at| image[at]), |rgb, &step| plain(rgb, step));
                    assert_eq!(
                        at.map(|at| ours[at].to_bits()),
                        want.map(f32::to_bits),
                        "{isa} {steps:?} {:?}",
                        at.map(|at| image[at])
                    );
                }
            }
        }
    }
}

/// The sum over pixels in order, also where a luma is too small for the sum to be exact.
#[test]
fn the_mean_luma_is_that_of_the_plain_sum() {
    for (pixels, dark) in [(1, 0.0), (37, 0.0), (50_176, 0.0), (50_176, 1e-9), (70_001, 3e-12)] {
        let mut image = planes(pixels);
        // Every seventh value: sums of these depend on the order.
        image.iter_mut().step_by(7).for_each(|v| *v = if dark > 0.0 { *v * dark } else { *v });
        let at = |pixel: usize| [image[pixel], image[pixels + pixel], image[2 * pixels + pixel]];
        let want = (0..pixels).map(|pixel| f64::from(luma(at(pixel)))).sum::<f64>() / pixels as f64;
        for isa in Isa::available() {
            assert_eq!(mean_luma(isa, &image).to_bits(), want.to_bits(), "{isa}, {pixels} pixels");
        }
    }
}

fn mirrored(mut at: isize, len: usize) -> usize {
    let last = len as isize - 1;
    while last > 0 && (at < 0 || at > last) {
        at = if at < 0 { -at } else { 2 * last - at };
    }
    if last == 0 { 0 } else { at as usize }
}

#[test]
fn the_filter_adds_its_products_in_order() {
    for (height, width, count) in
        [(1, 1, 5), (2, 3, 7), (5, 16, 3), (9, 17, 1), (20, 100, 23), (7, 224, 23), (3, 350, 9)]
    {
        let image = &planes(height * width)[..height * width];
        let taps: Vec<f32> = (0..count).map(|k| 0.1 + k as f32 * 0.013).collect();
        let radius = (count / 2) as isize;
        let sum = |value: &dyn Fn(isize) -> f32| {
            taps.iter().enumerate().map(|(k, tap)| tap * value(k as isize - radius)).fold(0.0, |sum, v| sum + v)
        };
        let rows: Vec<f32> = (0..height * width)
            .map(|at| sum(&|k| image[at / width * width + mirrored((at % width) as isize + k, width)]))
            .collect();
        let want: Vec<f32> = (0..height * width)
            .map(|at| sum(&|k| rows[mirrored((at / width) as isize + k, height) * width + at % width]))
            .collect();
        // What a larger plane left behind is not read.
        let mut scratch = vec![f32::NAN; 99];
        for isa in Isa::available() {
            let mut ours = image.to_vec();
            separable(isa, &mut ours, width, &taps, &mut scratch);
            assert_eq!(ours, want, "{isa}, {height}×{width}, {count} taps");
        }
    }
}

#[test]
fn bytes_become_planes_and_planes_pixels() {
    let every: Vec<u8> = (0..=255).flat_map(|v| [v, 255 - v, v / 2]).collect();
    for (image, width) in [(every, 256), (bytes(3 * 5 * 33, 1), 33), (bytes(3 * 4, 2), 1), (bytes(3 * 6 * 224, 3), 224)]
    {
        let len = image.len() / 3;
        for (isa, flip) in Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
            let mut planes = vec![f32::NAN; image.len()];
            planes_of(isa, &image, width, flip, &mut planes);
            let mut out = vec![f32::NAN; image.len()];
            let (mean, scale) = ([0.1, 0.2, 0.3], [2.0, 3.0, 4.0]);
            normalised_pixels(isa, &planes, mean, scale, &mut out);
            for (pixel, channel) in (0..len).flat_map(|pixel| (0..3).map(move |channel| (pixel, channel))) {
                let column = pixel % width;
                let from = if flip { pixel - column + width - 1 - column } else { pixel };
                let want = f32::from(image[3 * from + channel]) / 255.0;
                assert_eq!(planes[channel * len + pixel], want, "{isa}");
                assert_eq!(out[3 * pixel + channel], (want - mean[channel]) * scale[channel], "{isa}");
            }
        }
    }
}
