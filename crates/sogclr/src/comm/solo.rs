//! A group of one process.

use super::Collective;

/// A group of one: everything is its own sum.
pub struct Solo;

impl Collective for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn sum(&self, _: &mut [f32]) {}

    fn sum_apart(&self, _: &mut [f32]) {}

    fn sum_f64(&self, _: &mut [f64]) {}

    fn gather(&self, values: Vec<f32>) -> Vec<f32> {
        values
    }

    fn gather_bytes(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        vec![bytes]
    }
}
