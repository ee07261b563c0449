//! Images of one size, all in memory: IDX, CIFAR and the embedded set.

use super::{DataError, Fingerprint, Image, Source};

pub(super) struct MemoryImages {
    /// File name used in `name#row`.
    pub name: String,
    pub side: (usize, usize),
    pub channels: usize,
    /// Interleaved pixels, image after image.
    pub pixels: Vec<u8>,
}

impl MemoryImages {
    fn pixels_of(&self, index: usize) -> &[u8] {
        let len = self.side.0 * self.side.1 * self.channels;
        &self.pixels[index * len..][..len]
    }
}

impl Source for MemoryImages {
    fn count(&self) -> usize {
        self.pixels.len() / (self.side.0 * self.side.1 * self.channels)
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        let (height, width) = self.side;
        Ok(Image::new(height, width, self.channels, self.pixels_of(index).to_vec()))
    }

    fn name(&self, index: usize) -> String {
        format!("{}#{index}", self.name)
    }

    fn check(&self, index: usize) -> Result<Fingerprint, DataError> {
        Ok(Fingerprint::of(self.pixels_of(index)))
    }
}
