//! The paper's linear protocol: SGD with Nesterov momentum on randomly cropped and flipped training images, batch
//! 4096, lr 0.1·B/256, no weight decay, 90 epochs, cosine; centre crops for testing. The encoder stays frozen.

use super::{Accuracy, EvalError, FrozenEncoder, LinearClassifier};
use crate::check::{Problem, require};
use crate::comm::Group;
use crate::data::Split;
use crate::math::{Purpose, SampleRng};
use crate::optim::warmup_cosine;
use crate::storage::write_atomic;
use ndarray::Array1;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant};

const MOMENTUM: f64 = 0.9;
/// At most so often the state is written.
const PAUSE: Duration = Duration::from_secs(60);

/// The protocol's settings; `Default` is the paper's.
#[derive(Clone, Debug, Serialize)]
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

impl PaperProtocol {
    /// Refuses what cannot work.
    pub fn check(&self) -> Result<(), Problem> {
        let Self { epochs, batch, lr, .. } = *self;
        require(epochs >= 1, "epochs", || "is 0: the classifier needs at least 1".into())?;
        require(batch >= 1, "batch", || "is 0: a step needs at least 1 image".into())?;
        require(lr > 0.0 && lr.is_finite(), "lr", || format!("is {lr}: use a positive number (the paper's is 0.1)"))
    }

    /// Images that pass through the encoder, with `train` and `test` images.
    pub fn views(&self, train: usize, test: usize) -> usize {
        let batch = self.batch.min(train).max(1);
        self.epochs * (train / batch) * batch + train + test
    }
}

/// What an encoder of images reaches by the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperMeasured {
    /// On the test images.
    pub linear_paper: Accuracy,
    /// On the images that the classifier was trained on, without crops.
    pub linear_paper_train: Accuracy,
}

/// Classifier and momentum after some epochs.
struct State {
    epoch: usize,
    classifier: LinearClassifier,
    velocity: LinearClassifier,
}

impl State {
    /// Nesterov's step: v = μv + g;  w −= lr·(g + μv)
    fn descend(&mut self, gradient: &LinearClassifier, lr: f64) {
        let Self { classifier, velocity, .. } = self;
        velocity.weight = &velocity.weight * MOMENTUM + &gradient.weight;
        velocity.bias = &velocity.bias * MOMENTUM + &gradient.bias;
        classifier.weight.scaled_add(-lr, &(&gradient.weight + &(&velocity.weight * MOMENTUM)));
        classifier.bias.scaled_add(-lr, &(&gradient.bias + &(&velocity.bias * MOMENTUM)));
    }

    /// Epoch, values and their hash.
    fn save(&self, path: &Path) -> Result<(), EvalError> {
        let mut bytes = (self.epoch as u64).to_le_bytes().to_vec();
        for value in self.classifier.flat().iter().chain(&self.velocity.flat()) {
            bytes.extend(value.to_le_bytes());
        }
        bytes.extend(blake3::hash(&bytes).as_bytes());
        Ok(write_atomic(path, &bytes)?)
    }

    /// What [`State::save`] wrote, if it is there and whole on rank 0.
    fn load(path: &Path, group: &Group, classes: usize, dim: usize) -> Option<Self> {
        let bytes = group.from_first(std::fs::read(path).unwrap_or_default());
        let (body, hash) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
        let count = classes * dim + classes;
        if blake3::hash(body).as_bytes() != hash || body.len() != 8 * (1 + 2 * count) {
            return None;
        }
        let words: Vec<[u8; 8]> = body.chunks_exact(8).map(|word| word.try_into().expect("eight bytes")).collect();
        let values: Vec<f64> = words[1..].iter().map(|word| f64::from_le_bytes(*word)).collect();
        let half = |values: &[f64]| LinearClassifier::from_flat(&Array1::from(values.to_vec()), classes, dim);
        let (classifier, velocity) = (half(&values[..count]), half(&values[count..]));
        Some(Self { epoch: u64::from_le_bytes(words[0]) as usize, classifier, velocity })
    }
}

/// Trains the classifier and tests it; `progress` is told how many more images went through the encoder, those of epochs
/// done before included. Where `resume` names a file, the state is kept there until the end, and an interrupted training
/// goes on from its last whole epoch to the same result.
pub fn linear_paper(
    encoder: &FrozenEncoder,
    train: &Split,
    test: &Split,
    classes: usize,
    protocol: &PaperProtocol,
    resume: Option<&Path>,
    progress: impl Fn(usize) + Sync,
) -> Result<PaperMeasured, EvalError> {
    let batch = protocol.batch.min(train.len());
    let peak = protocol.lr * batch as f64 / 256.0;
    let per_epoch = train.len() / batch;
    let test = encoder.extract(test, &progress)?;
    let dim = test.features.ncols();
    let mut state = resume.and_then(|path| State::load(path, encoder.group(), classes, dim)).unwrap_or_else(|| State {
        epoch: 0,
        classifier: LinearClassifier::zeros(classes, dim),
        velocity: LinearClassifier::zeros(classes, dim),
    });
    progress(state.epoch.min(protocol.epochs) * per_epoch * batch);
    let mut written = Instant::now();
    for epoch in state.epoch..protocol.epochs {
        let order = SampleRng::new(protocol.seed, Purpose::LinearEval, epoch as u64, 0, 0).permutation(train.len());
        for (index, ids) in order.chunks_exact(batch).enumerate() {
            let t = epoch * per_epoch + index;
            let lr = warmup_cosine(peak, t as f64, 0.0, (protocol.epochs * per_epoch) as f64);
            let features = encoder.extract_crops(train, ids, protocol.seed, epoch, &progress)?;
            let labels: Vec<u32> = ids.iter().map(|&id| train.label(id).unwrap_or_default()).collect();
            let (_, gradient) = state.classifier.loss_and_gradient(&features, &labels);
            state.descend(&gradient, lr);
        }
        state.epoch = epoch + 1;
        if let Some(path) = resume.filter(|_| encoder.group().is_first() && written.elapsed() > PAUSE) {
            state.save(path)?;
            written = Instant::now();
        }
    }
    if let Some(path) = resume.filter(|_| encoder.group().is_first()) {
        let _ = std::fs::remove_file(path);
    }
    let on_train = state.classifier.accuracy(&encoder.extract(train, &progress)?);
    Ok(PaperMeasured { linear_paper: state.classifier.accuracy(&test), linear_paper_train: on_train })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array2, array};

    #[test]
    fn a_state_comes_back_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let classifier = LinearClassifier { weight: array![[0.1, -0.0], [1e-300, 3.0]], bias: array![1.0 / 3.0, 2.0] };
        let velocity = LinearClassifier { weight: Array2::ones((2, 2)), bias: array![5.0, 6.0] };
        State { epoch: 7, classifier: classifier.clone(), velocity: velocity.clone() }.save(&path).unwrap();
        let back = State::load(&path, &Group::solo(), 2, 2).unwrap();
        assert_eq!((back.epoch, back.classifier.flat(), back.velocity.flat()), (7, classifier.flat(), velocity.flat()));
        assert!(State::load(&path, &Group::solo(), 2, 3).is_none(), "of other features");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(State::load(&path, &Group::solo(), 2, 2).is_none(), "cut");
    }

    /// g = 1 and 2, lr = 0.5: v = 1 and 2.9, w = −0.5·(1 + 0.9) and less 0.5·(2 + 2.61).
    #[test]
    fn two_steps_are_nesterovs_by_hand() {
        let zero = LinearClassifier { weight: array![[0.0]], bias: array![0.0] };
        let mut state = State { epoch: 0, classifier: zero.clone(), velocity: zero };
        for gradient in [1.0, 2.0] {
            state.descend(&LinearClassifier { weight: array![[gradient]], bias: array![-gradient] }, 0.5);
        }
        let [weight, bias] = [state.classifier.weight[[0, 0]], state.classifier.bias[0]];
        assert!((weight + 0.95 + 2.305).abs() < 1e-12 && (bias - 0.95 - 2.305).abs() < 1e-12, "{weight} {bias}");
    }

    #[test]
    fn whole_batches_are_counted() {
        let protocol = PaperProtocol { epochs: 3, batch: 8, ..Default::default() };
        assert_eq!((protocol.views(20, 7), protocol.views(5, 7)), (3 * 16 + 27, 3 * 5 + 12));
    }
}
