//! One view of one image: crop, flip, colour (jitter, blur, RandAugment, greyscale), normalise.

use super::stages::{Clock, Stage, StageTimes};
use super::{AugmentConfig, CropBox, CropGroup, Jigsaw, Jitter, Planes, Resizer, blur, colour, rand_augment};
use crate::data::Image;
use crate::math::{Layout, SampleRng};
use sogclr_kernels::{Colour, Isa, normalised_pixels};

/// Applies the operations with buffers that are reused; one for each worker.
pub struct Augmenter {
    config: AugmentConfig,
    layout: Layout,
    resizer: Resizer,
    resized: Image,
    planes: Planes,
    /// Colour operations that wait to be done in one pass.
    steps: Vec<Colour>,
    scratch: Vec<f32>,
    clock: Clock,
}

impl Augmenter {
    /// Writes views in `layout`.
    pub fn new(config: &AugmentConfig, layout: Layout) -> Self {
        Self {
            config: config.clone(),
            layout,
            resizer: Resizer::default(),
            resized: Image::new(1, 1, 1, vec![0_u8]),
            planes: Planes::default(),
            steps: Vec::new(),
            scratch: Vec::new(),
            clock: Clock::default(),
        }
    }

    /// The same, taking the time of each stage.
    pub fn timed(self) -> Self {
        Self { clock: Clock::running(), ..self }
    }

    /// What the stages of views have taken so far; `None` unless it is [`timed`](Self::timed).
    pub fn times(&self) -> Option<StageTimes> {
        self.clock.times()
    }

    /// Writes one training view of `size` × `size` pixels of `image` to `out`.
    pub fn view(&mut self, image: &Image, group: &CropGroup, rng: &mut SampleRng, out: &mut [f32]) {
        let start = self.clock.start();
        let region = CropBox::random(image, group.scale, rng);
        self.crop_flip(image, region, group.size, rng);
        self.clock.stop(Stage::Resize, start);
        self.colour(group.size, rng);
        let start = self.clock.start();
        self.normalise(out);
        self.clock.stop(Stage::Normalise, start);
    }

    /// Cuts a large crop into a grid and writes one tile of each cell, in random order; as in InfoMin, without colour
    /// operations. `out[k]` holds `tile` × `tile` pixels.
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
            self.planes.read(&CropBox { top, left, height: tile, width: tile }.cut(&whole), flip);
            self.normalise(out);
        }
    }

    /// Jitter, blur, RandAugment and greyscale. SimCLR has greyscale before blur, with which it commutes; InfoMin has it
    /// after RandAugment, with which it does not.
    fn colour(&mut self, size: usize, rng: &mut SampleRng) {
        let Self { config, planes, steps, scratch, clock, .. } = self;
        let mut start = clock.start();
        if rng.chance(config.jitter.probability) {
            jitter(planes, &config.jitter, rng, steps);
        }
        if rng.chance(config.blur.probability) {
            flush(planes, steps);
            clock.stop(Stage::Colour, start);
            start = clock.start();
            let kernel = (size / 10) | 1;
            let sigma = rng.uniform(config.blur.sigma[0], config.blur.sigma[1]);
            blur::gaussian_blur(planes, kernel, sigma as f32, scratch);
            clock.stop(Stage::Blur, start);
            start = clock.start();
        }
        if let Some(operations) = &config.rand_augment {
            flush(planes, steps);
            rand_augment(planes, operations, rng, scratch);
        }
        if rng.chance(config.grey) {
            steps.push(Colour::Grey);
        }
        flush(planes, steps);
        clock.stop(Stage::Colour, start);
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
        self.planes.read(&region.cut(&resized), false);
        self.normalise(out);
    }

    fn crop_flip(&mut self, image: &Image, region: CropBox, size: usize, rng: &mut SampleRng) {
        self.resizer.crop_resize_into(image, region, size, size, &mut self.resized);
        self.planes.read(&self.resized, rng.chance(self.config.flip));
    }

    /// (x − mean)/std; a single channel is repeated where more are wanted.
    fn normalise(&self, out: &mut [f32]) {
        let (len, channels) = (self.planes.plane_len(), self.config.channels());
        if let (Layout::ChannelsLast, 3, &[r, g, b], &[rs, gs, bs]) =
            (self.layout, self.planes.channels, self.config.mean.as_slice(), self.config.std.as_slice())
        {
            let scale = [rs, gs, bs].map(|std| 1.0 / std);
            normalised_pixels(Isa::best(), &self.planes.values, [r, g, b], scale, out);
            return;
        }
        for (channel, (mean, std)) in self.config.mean.iter().zip(&self.config.std).enumerate() {
            let source = channel.min(self.planes.channels - 1);
            let plane = &self.planes.values[source * len..][..len];
            let scale = 1.0 / std;
            let write = |(out, v): (&mut f32, &f32)| *out = (v - mean) * scale;
            match self.layout {
                Layout::ChannelsFirst => out[channel * len..][..len].iter_mut().zip(plane).for_each(write),
                Layout::ChannelsLast => out[channel..].iter_mut().step_by(channels).zip(plane).for_each(write),
            }
        }
    }
}

/// Draws the operations in random order, and does those that the mean of contrast depends on.
fn jitter(planes: &mut Planes, config: &Jitter, rng: &mut SampleRng, steps: &mut Vec<Colour>) {
    let mut order = [0, 1, 2, 3];
    rng.shuffle(&mut order);
    for operation in order {
        let mut factor = |strength: f64| rng.uniform((1.0 - strength).max(0.0), 1.0 + strength) as f32;
        match operation {
            0 if config.brightness > 0.0 => steps.push(Colour::Brightness(factor(config.brightness))),
            1 if config.contrast > 0.0 => {
                flush(planes, steps);
                steps.push(colour::contrast_step(planes, factor(config.contrast)));
            }
            2 if config.saturation > 0.0 => steps.push(Colour::Saturation(factor(config.saturation))),
            3 if config.hue > 0.0 => steps.push(Colour::Hue(rng.uniform(-config.hue, config.hue) as f32)),
            _ => {}
        }
    }
}

/// Does what waits.
fn flush(planes: &mut Planes, steps: &mut Vec<Colour>) {
    if !steps.is_empty() {
        colour::apply(planes, steps);
        steps.clear();
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
        let data: Vec<u8> = (0..side * side).map(|i| (i / side / 12 * 3 + i % side / 12) as u8 * 25).collect();
        let image = Image::new(side, side, 1, data);
        let mut config = AugmentConfig::preset(Preset::Grey, view);
        (config.flip, config.mean, config.std) = (0.0, vec![0.0; 3], vec![1.0; 3]);
        let tile = jigsaw.tile_size(view);
        let mut augmenter = Augmenter::new(&config, Layout::ChannelsFirst);
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

    /// Five channels of 16 bits: each is normalised by its own mean, and the two layouts hold the same values.
    #[test]
    fn any_number_of_channels_is_normalised_in_both_layouts() {
        let (size, channels) = (4, 5);
        let data: Vec<u16> = (0..size * size * channels).map(|k| (k * 700) as u16).collect();
        let image = Image::new(size, size, channels, data);
        let mut config = AugmentConfig::for_channels(Preset::Imagenet, size, channels);
        assert_eq!(config.channels(), channels);
        config.mean = (0..channels).map(|channel| 0.1 * channel as f32).collect();
        let render = |layout| {
            let mut out = vec![f32::NAN; channels * size * size];
            Augmenter::new(&config, layout).centre_view(&image, size, &mut out);
            out
        };
        let (first, last) = (render(Layout::ChannelsFirst), render(Layout::ChannelsLast));
        for channel in 0..channels {
            for pixel in 0..size * size {
                let value = (image.data.unit(pixel * channels + channel) - config.mean[channel]) / config.std[channel];
                assert!((first[channel * size * size + pixel] - value).abs() < 1e-5);
                assert_eq!(first[channel * size * size + pixel], last[pixel * channels + channel]);
            }
        }
        // Colour operations leave what is not red, green and blue as it is.
        let mut planes = Planes::default();
        planes.read(&image, false);
        let before = planes.clone();
        colour::saturation(&mut planes, 0.3);
        colour::hue(&mut planes, 0.2);
        colour::greyscale(&mut planes);
        assert_eq!(planes, before);
    }
}
