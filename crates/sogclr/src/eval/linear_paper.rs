//! The paper's linear protocol: SGD with Nesterov momentum on randomly cropped and flipped training images, batch
//! 4096, lr 0.1·B/256, no weight decay, 90 epochs, cosine; centre crops for testing. The encoder stays frozen.

use super::{Accuracy, EvalError, FrozenEncoder, LinearClassifier};
use crate::data::Split;
use crate::math::{Purpose, SampleRng};
use crate::optim::warmup_cosine;

const MOMENTUM: f64 = 0.9;

/// The protocol's settings; `Default` is the paper's.
#[derive(Clone, Debug)]
pub struct PaperProtocol {
    /// Passes over the training images.
    pub epochs: usize,
    /// Images of a step; fewer where there are fewer.
    pub batch: usize,
    /// Before scaling by batch/256.
    pub lr: f64,
    /// Seed of order and crops.
    pub seed: u64,
}

impl Default for PaperProtocol {
    fn default() -> Self {
        Self { epochs: 90, batch: 4096, lr: 0.1, seed: 0 }
    }
}

/// Trains the classifier and tests it; `progress` is called with (epochs done, training loss).
pub fn linear_paper(
    encoder: &FrozenEncoder,
    train: &Split,
    test: &Split,
    classes: usize,
    protocol: &PaperProtocol,
    mut progress: impl FnMut(usize, f64),
) -> Result<Accuracy, EvalError> {
    let batch = protocol.batch.min(train.len());
    let peak = protocol.lr * batch as f64 / 256.0;
    let per_epoch = train.len() / batch;
    let test = encoder.extract(test, |_| {})?;
    let mut classifier = LinearClassifier::zeros(classes, test.features.ncols());
    let mut velocity = classifier.clone();
    for epoch in 0..protocol.epochs {
        let order = SampleRng::new(protocol.seed, Purpose::LinearEval, epoch as u64, 0, 0).permutation(train.len());
        let mut epoch_loss = 0.0;
        for (index, ids) in order.chunks_exact(batch).enumerate() {
            let t = epoch * per_epoch + index;
            let lr = warmup_cosine(peak, t as f64, 0.0, (protocol.epochs * per_epoch) as f64);
            let features = encoder.extract_crops(train, ids, protocol.seed, epoch)?;
            let labels: Vec<u32> = ids.iter().map(|&id| train.label(id).unwrap_or_default()).collect();
            let (loss, gradient) = classifier.loss_and_gradient(&features, &labels);
            // v = μv + g;  w −= lr·(g + μv)
            velocity.weight = &velocity.weight * MOMENTUM + &gradient.weight;
            velocity.bias = &velocity.bias * MOMENTUM + &gradient.bias;
            classifier.weight.scaled_add(-lr, &(&gradient.weight + &(&velocity.weight * MOMENTUM)));
            classifier.bias.scaled_add(-lr, &(&gradient.bias + &(&velocity.bias * MOMENTUM)));
            epoch_loss += loss / per_epoch as f64;
        }
        progress(epoch + 1, epoch_loss);
    }
    Ok(classifier.accuracy(&test))
}
