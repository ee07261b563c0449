//! Between an image's bytes, pixel after pixel, the planes that colours are changed on, and what a network reads.
//!
//! The bytes of a result do not depend on the instruction set.

use crate::isa::{Isa, dispatch};
use crate::lanes::Lanes;

/// Pixels that are taken apart at once.
const BLOCK: usize = 32;

/// Planes of v/255 from the bytes of RGB pixels in rows of `width`; `flip` mirrors each row.
pub fn planes_of(isa: Isa, bytes: &[u8], width: usize, flip: bool, planes: &mut [f32]) {
    assert!(width > 0 && bytes.len().is_multiple_of(3 * width), "whole rows of three channels");
    assert_eq!(bytes.len(), planes.len(), "three planes");
    // SAFETY: plain Rust; the set is the CPU's.
    unsafe { separate(isa, bytes, width, flip, planes) }
}

/// (x − mean)·scale of three planes, pixel after pixel.
pub fn normalised_pixels(isa: Isa, planes: &[f32], mean: [f32; 3], scale: [f32; 3], out: &mut [f32]) {
    assert!(planes.len().is_multiple_of(3) && planes.len() == out.len(), "three planes");
    // SAFETY: plain Rust; the set is the CPU's.
    unsafe { interleave(isa, planes, mean, scale, out) }
}

dispatch! {
    unsafe fn separate = separate_lanes(bytes: &[u8], width: usize, flip: bool, planes: &mut [f32])
}

dispatch! {
    unsafe fn interleave = interleave_lanes(planes: &[f32], mean: [f32; 3], scale: [f32; 3], out: &mut [f32])
}

/// v/255, correctly rounded without a division: the first product is exact, and the second is what it lacks.
#[inline(always)]
fn unit(v: u8) -> f32 {
    const HIGH: f32 = f32::from_bits((1.0_f32 / 255.0).to_bits() & 0xFFFF_FF00);
    const LOW: f32 = (1.0 / 255.0 - HIGH as f64) as f32;
    let v = f32::from(v);
    v * HIGH + v * LOW
}

#[inline(always)]
unsafe fn separate_lanes<V: Lanes>(bytes: &[u8], width: usize, flip: bool, planes: &mut [f32]) {
    let len = bytes.len() / 3;
    // Two loops, over bytes and over floats: together they are not turned into lanes.
    let mut channels = [[0_u8; BLOCK]; 3];
    for (y, row) in bytes.chunks_exact(3 * width).enumerate() {
        for (block, pixels) in row.chunks(3 * BLOCK).enumerate() {
            let count = pixels.len() / 3;
            if let Ok(pixels) = <&[u8; 3 * BLOCK]>::try_from(pixels) {
                separate_block(pixels, &mut channels);
            } else {
                for (x, pixel) in pixels.chunks_exact(3).enumerate() {
                    (0..3).for_each(|channel| channels[channel][x] = pixel[channel]);
                }
            }
            for (channel, bytes) in channels.iter().enumerate() {
                let to = &mut planes[channel * len + y * width..][block * BLOCK..][..count];
                to.iter_mut().zip(bytes).for_each(|(to, &v)| *to = unit(v));
            }
        }
        if flip {
            (0..3).for_each(|channel| planes[channel * len + y * width..][..width].reverse());
        }
    }
}

#[inline(always)]
fn separate_block(pixels: &[u8; 3 * BLOCK], [r, g, b]: &mut [[u8; BLOCK]; 3]) {
    for x in 0..BLOCK {
        r[x] = pixels[3 * x];
        g[x] = pixels[3 * x + 1];
        b[x] = pixels[3 * x + 2];
    }
}

#[inline(always)]
unsafe fn interleave_lanes<V: Lanes>(planes: &[f32], mean: [f32; 3], scale: [f32; 3], out: &mut [f32]) {
    let (r, rest) = planes.split_at(planes.len() / 3);
    let (g, b) = rest.split_at(r.len());
    for (i, out) in out.chunks_exact_mut(3).enumerate() {
        out[0] = (r[i] - mean[0]) * scale[0];
        out[1] = (g[i] - mean[1]) * scale[1];
        out[2] = (b[i] - mean[2]) * scale[2];
    }
}
