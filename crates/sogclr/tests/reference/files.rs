//! Reads `tests/golden`.

use ndarray::ArrayD;
use safetensors::{Dtype, SafeTensors};
use std::path::PathBuf;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

pub fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path(name)).unwrap()).unwrap()
}

/// A golden safetensors file, every number widened to f64.
pub struct Golden(Vec<u8>);

impl Golden {
    pub fn open(name: &str) -> Self {
        Self(std::fs::read(path(name)).unwrap())
    }

    pub fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).is_ok()
    }

    pub fn get(&self, name: &str) -> ArrayD<f64> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap_or_else(|_| panic!("no golden tensor {name}"));
        fn each<const N: usize>(data: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            data.chunks_exact(N).map(|bytes| f(bytes.try_into().unwrap())).collect()
        }
        let values = match view.dtype() {
            Dtype::F32 => each(view.data(), |b| f64::from(f32::from_le_bytes(b))),
            Dtype::F64 => each(view.data(), f64::from_le_bytes),
            Dtype::I64 => each(view.data(), |b| i64::from_le_bytes(b) as f64),
            Dtype::U8 => each(view.data(), |b: [u8; 1]| f64::from(b[0])),
            other => panic!("unexpected dtype {other:?}"),
        };
        ArrayD::from_shape_vec(view.shape(), values).unwrap()
    }
}

/// r ∈ [−1, 1) of `reference/golden.py`: the same weights on both sides without storing them.
pub fn hashed(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(0x811C_9DC5_u32, |h, byte| (h ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (0..count as u32)
        .map(|j| {
            let mut x = seed.wrapping_add(j.wrapping_mul(0x9E37_79B9));
            x ^= x >> 16;
            x = x.wrapping_mul(0x85EB_CA6B);
            x ^= x >> 13;
            x = x.wrapping_mul(0xC2B2_AE35);
            x ^= x >> 16;
            (f64::from(x >> 8) / f64::from(1 << 24) * 2.0 - 1.0) as f32
        })
        .collect()
}

#[test]
fn the_hash_agrees_with_python() {
    assert_eq!(hashed("input", 4), [0.598_066_2, 0.370_348_45, 0.960_529_45, -0.991_520_76]);
    assert_eq!(hashed("conv1.weight", 3), [0.908_837_7, -0.201_232_08, -0.238_179_92]);
}
