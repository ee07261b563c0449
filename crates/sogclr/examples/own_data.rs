//! Pre-trains on images that the program makes itself; any `Source` will do: memory, a database, a camera.
//!
//! cargo run --release -p sogclr --example own_data -- runs/stripes

use sogclr::config::{Overrides, RunConfig};
use sogclr::data::{DataError, Dataset, Image, Source, Split};
use sogclr::encoder::{ResNetConfig, ResNetName};
use sogclr::train::Pretraining;
use std::ops::ControlFlow;
use std::sync::Arc;

const SIDE: usize = 32;
/// Red, green, blue and, say, infrared.
const CHANNELS: usize = 4;

/// Stripes in 200 directions, as floats from 0 to 1.
struct Stripes;

impl Source for Stripes {
    fn count(&self) -> usize {
        200
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        let (sin, cos) = (index as f32 * 0.0157).sin_cos();
        let value = |k: usize| {
            let (pixel, channel) = (k / CHANNELS, k % CHANNELS);
            let along = cos * (pixel % SIDE) as f32 + sin * (pixel / SIDE) as f32;
            0.5 + 0.5 * (along * (0.5 + 0.1 * channel as f32)).sin()
        };
        let samples: Vec<f32> = (0..SIDE * SIDE * CHANNELS).map(value).collect();
        Ok(Image::new(SIDE, SIDE, CHANNELS, samples))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = std::env::args().nth(1).unwrap_or("runs/stripes".into());
    let data = Dataset::new("stripes", Split::new(Arc::new(Stripes), None))?;

    let resnet = ResNetConfig { width: 0.5, ..ResNetConfig::for_size(ResNetName::Resnet8, SIDE) };
    let settings = Overrides::default().batch(20).epochs(2).encoder(resnet);
    let config = RunConfig::resolve(&data.describe(), &settings)?;

    let mut run = Pretraining::new(config, data, out.as_ref())?;
    run.train(|at| {
        println!("step {} of {}: loss {:.4}", at.step, at.total_steps, at.loss);
        ControlFlow::Continue(())
    })?;
    Ok(())
}
