//! Pre-trains an encoder on 200 embedded images, or on a folder of yours, with settings as types.
//!
//! cargo run --release -p sogclr --example pretrain -- runs/first [photos/]

use sogclr::config::{Overrides, RunConfig};
use sogclr::data::DataConfig;
use sogclr::encoder::{ResNetConfig, ResNetName};
use sogclr::loss::{Gamma, Variant};
use sogclr::method::SogclrConfig;
use sogclr::train::Pretraining;
use std::ops::ControlFlow;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let out = arguments.next().unwrap_or("runs/first".into());
    let path = arguments.next().map(Into::into);
    let limit = path.is_none().then_some(200);

    let settings = Overrides::default()
        .images(&DataConfig { path, limit, ..Default::default() })
        .batch(20)
        .epochs(2)
        .encoder(ResNetConfig { width: 0.5, ..ResNetConfig::for_size(ResNetName::Resnet8, 28) })
        .method(SogclrConfig {
            temperature: 0.2,
            gamma: Gamma::Constant { value: 0.8 },
            variant: Variant::Default,
            epsilon: 0.0,
            repulsion: 1.0,
            by_label: false,
        });
    // Everything that is not set has a default that fits the data.
    let (config, data) = RunConfig::open(&settings)?;
    println!("{} images, batch {}, {} epochs", data.train.len(), config.train.batch, config.train.epochs);

    let mut run = Pretraining::new(config, data, out.as_ref())?;
    run.train(|at| {
        if at.step % at.steps_per_epoch == 0 {
            println!("epoch {}: loss {:.4}, {:?}", at.step / at.steps_per_epoch, at.loss, at.verdict);
        }
        ControlFlow::Continue(())
    })?;
    println!("encoder: {out}/encoder.safetensors");
    Ok(())
}
