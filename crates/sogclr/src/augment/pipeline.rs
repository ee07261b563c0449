//! One view of one image: crop, flip, colour (jitter, blur, RandAugment, greyscale), normalise.

use super::{AugmentConfig, CropBox, CropGroup, Jigsaw, Jitter, Planes, Resizer, blur, colour, rand_augment};
use crate::data::Image;
use crate::math::SampleRng;

/// Applies the operations with buffers that are reused; one for each worker.
pub struct Augmenter {
    config: AugmentConfig,
    resizer: Resizer,
    planes: Planes,
    scratch: Vec<f32>,
}

impl Augmenter {
    pub fn new(config: &AugmentConfig) -> Self {
        Self { config: config.clone(), resizer: Resizer::default(), planes: Planes::default(), scratch: Vec::new() }
    }

    /// Writes one training view `[3, size, size]` of `image` to `out`.
    pub fn view(&mut self, image: &Image, group: &CropGroup, rng: &mut SampleRng, out: &mut [f32]) {
        let region = CropBox::random(image, group.scale, rng);
        self.crop_flip(image, region, group.size, rng);
        self.colour(group.size, rng);
        self.normalise(out);
    }

    /// Cuts a large crop into a grid and writes one tile of each cell, in random order; as in InfoMin, without colour
    /// operations. `out[k]` is `[3, tile, tile]`.
    pub fn jigsaw(&mut self, image: &Image, config: &Jigsaw, rng: &mut SampleRng, out: &mut [&mut [f32]]) {
        let view = self.config.views[0].size;
        let (cell, tile) = (config.cell_size(view), config.tile_size(view));
        let region = CropBox::random(image, config.scale, rng);
        let whole = self.resizer.crop_resize(image, region, config.grid * cell, config.grid * cell);
        let flip = rng.chance(self.config.flip);
        let mut order: Vec<usize> = (0..config.tiles()).collect();
        rng.shuffle(&mut order);
        for (place, out) in order.into_iter().zip(out) {
            let mut offset = || rng.uniform(0.0, (cell - tile + 1) as f64) as usize;
            let (top, left) = (place / config.grid * cell + offset(), place % config.grid * cell + offset());
            self.planes.read(&CropBox { top, left, height: tile, width: tile }.cut(&whole));
            if flip {
                self.planes.flip();
            }
            self.normalise(out);
        }
    }

    /// Jitter, blur, RandAugment and greyscale. SimCLR has greyscale before blur, with which it commutes; InfoMin has it
    /// after RandAugment, with which it does not.
    fn colour(&mut self, size: usize, rng: &mut SampleRng) {
        let config = &self.config;
        if rng.chance(config.jitter.probability) {
            jitter(&mut self.planes, &config.jitter, rng);
        }
        if rng.chance(config.blur.probability) {
            let kernel = (size / 10) | 1;
            let sigma = rng.uniform(config.blur.sigma[0], config.blur.sigma[1]);
            blur::gaussian_blur(&mut self.planes, kernel, sigma as f32, &mut self.scratch);
        }
        if let Some(operations) = &config.rand_augment {
            rand_augment(&mut self.planes, operations, rng, &mut self.scratch);
        }
        if rng.chance(config.grey) {
            colour::greyscale(&mut self.planes);
        }
    }

    /// Random resized crop (area 0.08–1) and flip alone: training of the linear classifier.
    pub fn crop_view(&mut self, image: &Image, size: usize, rng: &mut SampleRng, out: &mut [f32]) {
        let region = CropBox::random(image, [0.08, 1.0], rng);
        self.crop_flip(image, region, size, rng);
        self.normalise(out);
    }

    /// The deterministic view for evaluation: shortest side resized, centre crop of `size`.
    pub fn centre_view(&mut self, image: &Image, size: usize, out: &mut [f32]) {
        let resized = self.resizer.shortest_side(image, self.config.centre_resize(size));
        // Half-way offsets go to the even side, as in torchvision.
        let offset = |long: usize| ((long - size) as f64 / 2.0).round_ties_even() as usize;
        let region = CropBox { top: offset(resized.height), left: offset(resized.width), height: size, width: size };
        self.planes.read(&region.cut(&resized));
        self.normalise(out);
    }

    fn crop_flip(&mut self, image: &Image, region: CropBox, size: usize, rng: &mut SampleRng) {
        self.planes.read(&self.resizer.crop_resize(image, region, size, size));
        if rng.chance(self.config.flip) {
            self.planes.flip();
        }
    }

    /// (x − mean)/std; one channel is repeated three times.
    fn normalise(&self, out: &mut [f32]) {
        let len = self.planes.plane_len();
        for (channel, out) in out.chunks_exact_mut(len).enumerate() {
            let source = channel.min(self.planes.channels - 1);
            let plane = &self.planes.values[source * len..][..len];
            let (mean, scale) = (self.config.mean[channel], 1.0 / self.config.std[channel]);
            out.iter_mut().zip(plane).for_each(|(out, v)| *out = (v - mean) * scale);
        }
    }
}

fn jitter(planes: &mut Planes, config: &Jitter, rng: &mut SampleRng) {
    let mut order = [0, 1, 2, 3];
    rng.shuffle(&mut order);
    for operation in order {
        let mut factor = |strength: f64| rng.uniform((1.0 - strength).max(0.0), 1.0 + strength) as f32;
        match operation {
            0 if config.brightness > 0.0 => colour::brightness(planes, factor(config.brightness)),
            1 if config.contrast > 0.0 => colour::contrast(planes, factor(config.contrast)),
            2 if config.saturation > 0.0 => colour::saturation(planes, factor(config.saturation)),
            3 if config.hue > 0.0 => colour::hue(planes, rng.uniform(-config.hue, config.hue) as f32),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::Preset;

    /// An image whose grey level tells the place, cut up whole and unflipped: each tile lies in a cell of its own.
    #[test]
    fn jigsaw_tiles_come_from_nine_cells_in_changing_order() {
        let (view, side) = (32, 36);
        let jigsaw = Jigsaw { grid: 3, scale: [1.0, 1.0] };
        assert_eq!((jigsaw.cell_size(view) * 3, jigsaw.tile_size(view)), (39, 10));
        assert_eq!((jigsaw.cell_size(224) * 3, jigsaw.tile_size(224)), (255, 64), "InfoMin's");
        let data = (0..side * side).map(|i| (i / side / 12 * 3 + i % side / 12) as u8 * 25).collect();
        let image = Image { height: side, width: side, channels: 1, data };
        let mut config = AugmentConfig::preset(Preset::Grey, view);
        (config.flip, config.mean, config.std) = (0.0, [0.0; 3], [1.0; 3]);
        let tile = jigsaw.tile_size(view);
        let mut augmenter = Augmenter::new(&config);
        let mut orders = Vec::new();
        for sample in 0..20 {
            let mut buffers = vec![vec![0.0; 3 * tile * tile]; 9];
            let mut tiles: Vec<&mut [f32]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
            augmenter.jigsaw(&image, &jigsaw, &mut SampleRng::augment(0, 0, sample, 2), &mut tiles);
            // The middle of a tile is far from the borders between cells, which the resize blurs.
            let middle = tile / 2 * tile + tile / 2;
            let order: Vec<usize> = buffers.iter().map(|t| (t[middle] * 255.0 / 25.0).round() as usize).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..9).collect::<Vec<_>>(), "every cell once");
            orders.push(order);
        }
        orders.sort();
        orders.dedup();
        assert!(orders.len() > 15, "shuffled");
    }
}
