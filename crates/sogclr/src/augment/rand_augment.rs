//! RandAugment (Cubuk et al., 2020) as InfoMin uses it: timm's `rand-n2-m10-mstd0.5`, with timm's fifteen operations
//! and ranges. Operators have torchvision's semantics; each result is in [0, 1].
//!
//! Equalise and posterise work on 8 bits: they round to the 0–255 grid first.

use super::Planes;
use super::colour::{brightness, contrast, saturation};
use crate::math::SampleRng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Random operations, each applied with probability ½.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandAugment {
    /// Operations on each image.
    pub count: usize,
    /// Strength, 0–10.
    pub magnitude: f64,
}

impl RandAugment {
    /// InfoMin's own: two operations at full strength.
    pub fn infomin() -> Self {
        Self { count: 2, magnitude: 10.0 }
    }

    /// What small images bear.
    pub fn gentle() -> Self {
        Self { count: 1, magnitude: 5.0 }
    }
}

/// Draws `count` operations uniformly with replacement. As in timm each is applied with probability ½ only, at
/// strength clip(magnitude + ½·N(0, 1), 0, 10)/10.
pub fn rand_augment(planes: &mut Planes, config: &RandAugment, rng: &mut SampleRng, scratch: &mut Vec<f32>) {
    for _ in 0..config.count {
        if let Some(choice) = Choice::draw(config.magnitude, rng) {
            choice.apply(planes, scratch);
        }
    }
}

struct Choice {
    operation: usize,
    strength: f64,
    sign: f64,
}

impl Choice {
    const OPERATIONS: usize = 15;

    fn draw(magnitude: f64, rng: &mut SampleRng) -> Option<Self> {
        let operation = rng.uniform(0.0, Self::OPERATIONS as f64) as usize;
        rng.chance(0.5).then(|| Self {
            operation,
            strength: (magnitude + 0.5 * f64::from(rng.normal())).clamp(0.0, 10.0) / 10.0,
            sign: if rng.chance(0.5) { 1.0 } else { -1.0 },
        })
    }

    /// timm's `_RAND_TRANSFORMS` in its order. Posterise and solarise grow weaker with strength, and the factors of the
    /// enhancing operators go from 0.1 to 1.9: only geometry has a sign.
    fn apply(&self, image: &mut Planes, scratch: &mut Vec<f32>) {
        let signed = |range: f64| (self.sign * self.strength * range) as f32;
        let level = |range: f64| (self.strength * range).floor() as f32 / 255.0;
        let factor = (self.strength * 1.8 + 0.1) as f32;
        match self.operation {
            0 => autocontrast(image),
            1 => equalise(image),
            2 => invert(image),
            3 => rotate(image, signed(30.0), scratch),
            4 => posterise(image, (self.strength * 4.0) as u32),
            5 => solarise(image, level(256.0)),
            6 => solarise_add(image, level(110.0)),
            7 => saturation(image, factor),
            8 => contrast(image, factor),
            9 => brightness(image, factor),
            10 => sharpness(image, factor, scratch),
            11 => shear_x(image, signed(0.3), scratch),
            12 => shear_y(image, signed(0.3), scratch),
            13 => translate_x(image, signed(0.45), scratch),
            14 => translate_y(image, signed(0.45), scratch),
            other => unreachable!("operation {other} of {}", Self::OPERATIONS),
        }
    }
}

/// (x − min)/(max − min) of each channel; a constant channel stays.
pub fn autocontrast(image: &mut Planes) {
    let len = image.plane_len();
    for plane in image.values.chunks_exact_mut(len) {
        let (min, max) = plane.iter().fold((1.0_f32, 0.0_f32), |(min, max), &v| (min.min(v), max.max(v)));
        if max > min {
            plane.iter_mut().for_each(|v| *v = ((*v - min) / (max - min)).clamp(0.0, 1.0));
        }
    }
}

fn to_byte(v: f32) -> u8 {
    (v * 255.0).round() as u8
}

/// k ← min(255, ⌊(Σ_{j<k} h_j + ⌊s/2⌋)/s⌋) of each channel, h its histogram, s = ⌊(n − h of the highest level)/255⌋;
/// with s = 0 the levels stay.
pub fn equalise(image: &mut Planes) {
    let len = image.plane_len();
    for plane in image.values.chunks_exact_mut(len) {
        let mut histogram = [0; 256];
        plane.iter().for_each(|&v| histogram[usize::from(to_byte(v))] += 1);
        let highest = histogram.iter().rev().find(|&&h| h > 0).copied().unwrap_or(0);
        let step = (len - highest) / 255;
        let mut below = step / 2;
        let table: [f32; 256] = std::array::from_fn(|k| {
            let equalised = below.checked_div(step).map_or(k, |level| level.min(255));
            below += histogram[k];
            equalised as f32 / 255.0
        });
        plane.iter_mut().for_each(|v| *v = table[usize::from(to_byte(*v))]);
    }
}

/// 1 − x
pub fn invert(image: &mut Planes) {
    image.values.iter_mut().for_each(|v| *v = 1.0 - *v);
}

/// Keeps the `bits` (0–8) highest bits; none is black.
pub fn posterise(image: &mut Planes, bits: u32) {
    let mask = (0xFF00_u32 >> bits) as u8;
    image.values.iter_mut().for_each(|v| *v = f32::from(to_byte(*v) & mask) / 255.0);
}

/// 1 − x where x ≥ threshold
pub fn solarise(image: &mut Planes, threshold: f32) {
    image.values.iter_mut().filter(|v| **v >= threshold).for_each(|v| *v = 1.0 - *v);
}

/// min(1, x + addend) where x < 128/255
pub fn solarise_add(image: &mut Planes, addend: f32) {
    image.values.iter_mut().filter(|v| **v < 128.0 / 255.0).for_each(|v| *v = (*v + addend).min(1.0));
}

/// clip(f·x + (1−f)·smooth), smooth = [1 1 1; 1 5 1; 1 1 1]/13 ∗ x; the border stays.
pub fn sharpness(image: &mut Planes, factor: f32, scratch: &mut Vec<f32>) {
    let (height, width) = (image.height, image.width);
    for plane in image.values.chunks_exact_mut(height * width) {
        scratch.clear();
        scratch.extend_from_slice(plane);
        for y in 1..height.saturating_sub(1) {
            for x in 1..width.saturating_sub(1) {
                let at = y * width + x;
                let sum: f32 = [at - width, at, at + width].iter().flat_map(|&row| &scratch[row - 1..=row + 1]).sum();
                let smooth = (sum + 4.0 * scratch[at]) / 13.0;
                plane[at] = (scratch[at] + (1.0 - factor) * (smooth - scratch[at])).clamp(0.0, 1.0);
            }
        }
    }
}

/// Turns about the centre, counter-clockwise.
pub fn rotate(image: &mut Planes, degrees: f32, scratch: &mut Vec<f32>) {
    let (sin, cos) = degrees.to_radians().sin_cos();
    let (x, y) = (image.width as f32 / 2.0, image.height as f32 / 2.0);
    affine(image, [[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]], scratch);
}

/// out(x, y) = in(x + shear·y, y), from the top left corner.
pub fn shear_x(image: &mut Planes, shear: f32, scratch: &mut Vec<f32>) {
    affine(image, [[1.0, shear, 0.0], [0.0, 1.0, 0.0]], scratch);
}

/// out(x, y) = in(x, y + shear·x), from the top left corner.
pub fn shear_y(image: &mut Planes, shear: f32, scratch: &mut Vec<f32>) {
    affine(image, [[1.0, 0.0, 0.0], [shear, 1.0, 0.0]], scratch);
}

/// out(x, y) = in(x + share·width, y)
pub fn translate_x(image: &mut Planes, share: f32, scratch: &mut Vec<f32>) {
    affine(image, [[1.0, 0.0, share * image.width as f32], [0.0, 1.0, 0.0]], scratch);
}

/// out(x, y) = in(x, y + share·height)
pub fn translate_y(image: &mut Planes, share: f32, scratch: &mut Vec<f32>) {
    affine(image, [[1.0, 0.0, 0.0], [0.0, 1.0, share * image.height as f32]], scratch);
}

// Deviation: InfoMin draws bilinear or bicubic and fills with ImageNet's mean.
const FILL: f32 = 0.5;

/// out(p) = m·Σ wₖ·in(qₖ) + (1−m)·fill, q the neighbours of M·(p, 1) inside the image, w bilinear, m = Σ wₖ. Pixel
/// (x, y) is at (x + ½, y + ½).
fn affine(image: &mut Planes, [[a, b, c], [d, e, f]]: [[f32; 3]; 2], scratch: &mut Vec<f32>) {
    let (height, width, len) = (image.height, image.width, image.plane_len());
    scratch.clear();
    scratch.extend_from_slice(&image.values);
    for (at, (y, x)) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))).enumerate() {
        let (x, y) = (x as f32 + 0.5, y as f32 + 0.5);
        let (u, v) = (a * x + b * y + c - 0.5, d * x + e * y + f - 0.5);
        let (left, top) = (u.floor(), v.floor());
        let (right, bottom) = (u - left, v - top); // weights of the right and lower neighbours
        let taps = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(dy, dx)| {
            let (qx, qy) = (left as isize + dx, top as isize + dy);
            let weight = [1.0 - right, right][dx as usize] * [1.0 - bottom, bottom][dy as usize];
            let inside = (0..width as isize).contains(&qx) && (0..height as isize).contains(&qy);
            if inside { (qy as usize * width + qx as usize, weight) } else { (0, 0.0) }
        });
        let m: f32 = taps.iter().map(|tap| tap.1).sum();
        for (plane, out) in scratch.chunks_exact(len).zip(image.values.iter_mut().skip(at).step_by(len)) {
            let sum: f32 = taps.iter().map(|&(q, weight)| weight * plane[q]).sum();
            *out = (m * sum + (1.0 - m) * FILL).clamp(0.0, 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(channels: usize, height: usize, width: usize) -> Planes {
        let values = (0..channels * height * width).map(|k| (20 + k * 37 % 211) as f32 / 255.0).collect();
        Planes { channels, height, width, values }
    }

    #[test]
    fn the_stream_decides_operation_strength_and_sign() {
        let choices: Vec<Choice> =
            (0..6000).filter_map(|sample| Choice::draw(8.0, &mut SampleRng::augment(3, 0, sample, 0))).collect();
        let share = |count: usize, of: usize| count as f64 / of as f64;
        assert!((share(choices.len(), 6000) - 0.5).abs() < 0.03);
        for operation in 0..Choice::OPERATIONS {
            let count = choices.iter().filter(|choice| choice.operation == operation).count();
            assert!((share(count, choices.len()) - 1.0 / 15.0).abs() < 0.02, "{operation}: {count}");
        }
        assert!((share(choices.iter().filter(|choice| choice.sign > 0.0).count(), choices.len()) - 0.5).abs() < 0.03);
        let mean = choices.iter().map(|choice| choice.strength).sum::<f64>() / choices.len() as f64;
        let variance = choices.iter().map(|c| (c.strength - mean).powi(2)).sum::<f64>() / choices.len() as f64;
        assert!((mean - 0.8).abs() < 0.005 && (variance.sqrt() - 0.05).abs() < 0.005, "{mean}, {variance}");

        let run = |sample| {
            let mut image = picture(3, 9, 7);
            let rng = &mut SampleRng::augment(3, 0, sample, 0);
            rand_augment(&mut image, &RandAugment::infomin(), rng, &mut Vec::new());
            image
        };
        assert_eq!(run(5), run(5));
        assert!((0..20).any(|sample| run(sample) != run(5)));
    }

    /// Arguments of timm's level functions at magnitude 7.3, negated where they have a sign.
    #[test]
    fn arguments_equal_timm() {
        type Operator = fn(&mut Planes, &mut Vec<f32>);
        let want: [Operator; Choice::OPERATIONS] = [
            |image, _| autocontrast(image),
            |image, _| equalise(image),
            |image, _| invert(image),
            |image, scratch| rotate(image, -21.9, scratch),
            |image, _| posterise(image, 2),
            |image, _| solarise(image, 186.0 / 255.0),
            |image, _| solarise_add(image, 80.0 / 255.0),
            |image, _| saturation(image, 1.414),
            |image, _| contrast(image, 1.414),
            |image, _| brightness(image, 1.414),
            |image, scratch| sharpness(image, 1.414, scratch),
            |image, scratch| shear_x(image, -0.219, scratch),
            |image, scratch| shear_y(image, -0.219, scratch),
            |image, scratch| translate_x(image, -0.3285, scratch),
            |image, scratch| translate_y(image, -0.3285, scratch),
        ];
        for (operation, want) in want.iter().enumerate() {
            let (mut ours, mut theirs) = (picture(3, 19, 23), picture(3, 19, 23));
            Choice { operation, strength: 0.73, sign: -1.0 }.apply(&mut ours, &mut Vec::new());
            want(&mut theirs, &mut Vec::new());
            assert!(ours != picture(3, 19, 23), "{operation}");
            for (ours, theirs) in ours.values.iter().zip(&theirs.values) {
                assert!((ours - theirs).abs() < 1e-5, "{operation}: {ours} vs {theirs}");
            }
        }
    }

    #[test]
    fn no_strength_is_the_identity() {
        let (image, scratch) = (picture(3, 6, 8), &mut Vec::new());
        let mut out = image.clone();
        rotate(&mut out, 0.0, scratch);
        [shear_x, shear_y, translate_x, translate_y].iter().for_each(|operator| operator(&mut out, 0.0, scratch));
        sharpness(&mut out, 1.0, scratch);
        posterise(&mut out, 8);
        solarise(&mut out, 256.0 / 255.0);
        solarise_add(&mut out, 0.0);
        assert_eq!(out, image);
    }

    #[test]
    fn every_operator_takes_any_size() {
        for (channels, height, width) in [(1, 1, 1), (3, 1, 1), (1, 1, 5), (3, 5, 1), (3, 2, 3)] {
            for operation in 0..Choice::OPERATIONS {
                let mut image = picture(channels, height, width);
                Choice { operation, strength: 0.9, sign: 1.0 }.apply(&mut image, &mut Vec::new());
                assert_eq!(image.values.len(), channels * height * width);
                assert!(image.values.iter().all(|v| (0.0..=1.0).contains(v)), "{operation}: {image:?}");
            }
        }
    }
}
