//! Randomness as a function of identity: the stream depends on (seed, purpose, a, b, c) and on nothing else,
//! so pixels, shuffles and weights are the same for any number of threads and any order of work.

use rand::{RngExt, SeedableRng, rand_core::Rng};
use rand_chacha::ChaCha8Rng;

/// What a stream is for; two purposes never share random numbers.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// The pixels of a view.
    Augment = 1,
    /// The order of an epoch.
    Shuffle = 2,
    /// Initial values of a parameter, and of the queue.
    Weights = 3,
    /// Which images `data.limit` keeps.
    Subset = 4,
    /// Order and crops of the paper's linear protocol.
    LinearEval = 5,
    /// Which keys meet in a group of batch norm.
    Keys = 6,
    /// Which caption of an image an epoch draws.
    Caption = 7,
    /// Images, batches and augmentations of the theory.
    Theory = 8,
}

/// A ChaCha8 stream whose 256-bit key is the identity of what it decides.
pub struct SampleRng(ChaCha8Rng);

impl SampleRng {
    /// The stream of this identity; what a, b and c stand for is up to the purpose.
    pub fn new(seed: u64, purpose: Purpose, a: u64, b: u64, c: u32) -> Self {
        let mut key = [0u8; 32];
        key[0..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&a.to_le_bytes());
        key[16..24].copy_from_slice(&b.to_le_bytes());
        key[24..28].copy_from_slice(&c.to_le_bytes());
        key[28..32].copy_from_slice(&(purpose as u32).to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Augmentation of one view of one sample in one epoch.
    pub fn augment(seed: u64, epoch: usize, sample: usize, view: usize) -> Self {
        Self::new(seed, Purpose::Augment, epoch as u64, sample as u64, view as u32)
    }

    /// Initial values of the parameter `name`.
    pub fn weights(seed: u64, name: &str) -> Self {
        let hash = blake3::hash(name.as_bytes());
        let (a, b) = hash.as_bytes()[..16].split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        Self::new(seed, Purpose::Weights, word(a), word(b), 0)
    }

    /// U[0, 1) with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// U[low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// A standard normal draw.
    pub fn normal(&mut self) -> f32 {
        self.0.sample(rand_distr::StandardNormal)
    }

    /// Fisher–Yates shuffle.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.0.random_range(0..=last as u64) as usize);
        }
    }

    /// The permutation of 0..n.
    pub fn permutation(self, n: usize) -> Vec<usize> {
        self.order(n).into_iter().map(|index| index as usize).collect()
    }

    /// The same in half the memory, of at most 2³².
    pub fn order(mut self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..u32::try_from(n).expect("at most 2^32 of them")).collect();
        self.shuffle(&mut order);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_identity_changes_the_stream() {
        let first = |seed, epoch, sample, view| SampleRng::augment(seed, epoch, sample, view).unit();
        let base = first(1, 2, 3, 0);
        assert_eq!(base, first(1, 2, 3, 0));
        for other in [first(2, 2, 3, 0), first(1, 3, 3, 0), first(1, 2, 4, 0), first(1, 2, 3, 1)] {
            assert_ne!(base, other);
        }
        assert_ne!(SampleRng::weights(1, "a").unit(), SampleRng::weights(1, "b").unit());
    }

    #[test]
    fn permutation_holds_every_index_once_and_moves_them() {
        let order = SampleRng::new(0, Purpose::Shuffle, 0, 0, 0).permutation(100);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_ne!(order, sorted);
    }
}
