//! Colour operators on planar [0, 1] images, torchvision's definitions, clipped after each.
//!
//! Saturation, hue and greyscale are for red, green and blue: on any other number of channels they do nothing, and contrast is
//! about the mean of all values.

use super::Planes;

/// Luma of an RGB pixel, torchvision's weights.
fn luma(r: f32, g: f32, b: f32) -> f32 {
    0.2989 * r + 0.587 * g + 0.114 * b
}

fn rgb(image: &mut Planes) -> (&mut [f32], &mut [f32], &mut [f32]) {
    let len = image.plane_len();
    let (r, rest) = image.values.split_at_mut(len);
    let (g, b) = rest.split_at_mut(len);
    (r, g, b)
}

/// clip(f·x)
pub fn brightness(image: &mut Planes, factor: f32) {
    image.values.iter_mut().for_each(|v| *v = (*v * factor).clamp(0.0, 1.0));
}

/// clip(f·x + (1−f)·mean luma)
pub fn contrast(image: &mut Planes, factor: f32) {
    let mean: f64 = if image.channels == 3 {
        let count = image.plane_len() as f64;
        let (r, g, b) = rgb(image);
        r.iter().zip(g).zip(b).map(|((r, g), b)| f64::from(luma(*r, *g, *b))).sum::<f64>() / count
    } else {
        image.values.iter().map(|&v| f64::from(v)).sum::<f64>() / image.values.len() as f64
    };
    let shift = (1.0 - factor) * mean as f32;
    image.values.iter_mut().for_each(|v| *v = (factor * *v + shift).clamp(0.0, 1.0));
}

/// clip(f·x + (1−f)·luma)
pub fn saturation(image: &mut Planes, factor: f32) {
    if image.channels != 3 {
        return;
    }
    let (r, g, b) = rgb(image);
    for ((r, g), b) in r.iter_mut().zip(g).zip(b) {
        let grey = (1.0 - factor) * luma(*r, *g, *b);
        for v in [r, g, b] {
            *v = (factor * *v + grey).clamp(0.0, 1.0);
        }
    }
}

/// Every channel becomes the luma.
pub fn greyscale(image: &mut Planes) {
    if image.channels != 3 {
        return;
    }
    let (r, g, b) = rgb(image);
    for ((r, g), b) in r.iter_mut().zip(g).zip(b) {
        let grey = luma(*r, *g, *b);
        (*r, *g, *b) = (grey, grey, grey);
    }
}

/// Turns the hue by `shift` of the colour circle, through HSV.
pub fn hue(image: &mut Planes, shift: f32) {
    if image.channels != 3 {
        return;
    }
    let (r, g, b) = rgb(image);
    for ((r, g), b) in r.iter_mut().zip(g).zip(b) {
        let (max, min) = (r.max(*g).max(*b), r.min(*g).min(*b));
        let range = max - min;
        if range == 0.0 {
            continue; // grey has no hue
        }
        let (rc, gc, bc) = ((max - *r) / range, (max - *g) / range, (max - *b) / range);
        let sector = if max == *r {
            bc - gc
        } else if max == *g {
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
        (*r, *g, *b) = match index as u32 % 6 {
            0 => (max, t, p),
            1 => (q, max, p),
            2 => (p, max, t),
            3 => (p, q, max),
            4 => (t, p, max),
            _ => (max, p, q),
        };
    }
}
