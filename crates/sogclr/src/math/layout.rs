//! The order of an image's values in memory.

/// Which axis of an image runs fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[channels, height, width]`: burn's plain operations.
    ChannelsFirst,
    /// `[height, width, channels]`: our kernels on the CPU.
    ChannelsLast,
}

impl Layout {
    /// The shape of `images` of `size` × `size` pixels.
    pub fn shape(self, images: usize, channels: usize, size: usize) -> [usize; 4] {
        match self {
            Self::ChannelsFirst => [images, channels, size, size],
            Self::ChannelsLast => [images, size, size, channels],
        }
    }
}
