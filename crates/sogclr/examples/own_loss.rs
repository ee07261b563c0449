//! A loss of one's own, from formula to trained encoder: the spectral contrastive loss (HaoChen et al. 2021),
//! −2·mean s⁺ + mean over i ≠ j of s², s the similarities between two views.
//!
//! cargo run --release -p sogclr --example own_loss -- runs/spectral

use sogclr::config::{Overrides, RunConfig};
use sogclr::data::DataConfig;
use sogclr::encoder::{ResNetConfig, ResNetName};
use sogclr::loss::{Loss, LossError, LossInput, LossOutput, SetName};
use sogclr::method::{MethodConfig, Spec};
use sogclr::train::Pretraining;
use std::ops::ControlFlow;

struct Spectral;

impl Loss for Spectral {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let [a, b] = [SetName::View(0), SetName::View(1)];
        let (x, y) = (input.checked_unit(a)?.matrix(), input.checked_unit(b)?.matrix());
        let n = x.nrows() as f32;
        let s = x.dot(&y.t());
        // ∂L/∂s: −2/n for a pair, 2s/(n(n−1)) for all others
        let mut slope = &s * (2.0 / (n * (n - 1.0)));
        slope.diag_mut().fill(-2.0 / n);
        let pairs: f32 = s.diag().sum();
        let others: f32 = s.iter().map(|s| s * s).sum::<f32>() - s.diag().iter().map(|s| s * s).sum::<f32>();
        let loss = -2.0 * pairs / n + others / (n * (n - 1.0));
        let unit_grads = vec![(a, slope.dot(y)), (b, slope.t().dot(x))];
        Ok(LossOutput::stateless(loss.into(), input.through_norms(unit_grads)?, input))
    }
}

/// A method that is its loss and nothing more.
struct SpectralMethod;

impl Spec for SpectralMethod {
    fn loss(&self) -> Box<dyn Loss> {
        Box::new(Spectral)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = std::env::args().nth(1).unwrap_or("runs/spectral".into());
    let settings = Overrides::default()
        .images(&DataConfig { limit: Some(200), ..Default::default() })
        .batch(20)
        .epochs(2)
        .encoder(ResNetConfig { width: 0.5, ..ResNetConfig::for_size(ResNetName::Resnet8, 28) })
        .method(MethodConfig::external("spectral", SpectralMethod));
    let (config, data) = RunConfig::open(&settings)?;
    Pretraining::new(config, data, out.as_ref())?.train(|at| {
        println!("step {} of {}: loss {:.4}", at.step, at.total_steps, at.loss);
        ControlFlow::Continue(())
    })?;
    Ok(())
}
