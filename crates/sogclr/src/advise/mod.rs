//! Which augmentation suits the images: short races of a small encoder, each without one of the things that augmentation destroys,
//! then without all that helped.
//!
//! With labels the encoders are compared by linear and nearest-neighbour accuracy on a fifth of the images, which training sees
//! without their labels. Without labels they are compared by how well a linear classifier tells by how many quarters an image was turned (Reed
//! et al., SelfAugment, CVPR 2021), and RankMe (Garrido et al., ICML 2023) stands beside it. Neither sees what the task needs:
//! where colour decides, turning does not show it.

mod rotated;

use crate::augment::Keep;
use crate::comm::Group;
use crate::config::{Overrides, RunConfig};
use crate::data::{Dataset, Description, Split};
use crate::estimate::Forecast;
use crate::eval::{
    Accuracy, Comparison, EvalError, FrozenEncoder, NEIGHBOURS, knn_accuracy, labelled_splits, linear_fast,
};
use crate::math::Matrix;
use crate::train::{Run, TrainError, Trainer, open_device};
use nalgebra::DMatrix;
use rotated::rotated;
use std::ops::ControlFlow;
use std::sync::Arc;
use toml::Value;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    /// The settings, the images or the training.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The measurement.
    #[error(transparent)]
    Eval(#[from] EvalError),
}

/// Side of the crops of a race, and most images of it.
const SIZE: usize = 48;
const IMAGES: usize = 3000;
const ENCODER: &str = "resnet8";
const BATCH: usize = 64;
/// Epochs of a race.
const FEWEST: usize = 2;
const MOST: usize = 60;
/// Share of the time that training may take; the rest is for reading and measuring.
const TRAINING: f64 = 0.8;

/// What one race found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What the augmentation kept; nothing in the usual one.
    pub kept: Vec<Keep>,
    /// With labels: linear and nearest-neighbour accuracy on held-out images.
    pub labelled: Option<[Accuracy; 2]>,
    /// How often the number of quarters is told of held-out images.
    pub rotation: Accuracy,
    /// exp of the entropy of the singular values of the held-out features.
    pub rankme: f64,
}

impl Finding {
    /// What is compared: linear accuracy with labels, rotation without.
    pub fn score(&self, has_labels: bool) -> &Accuracy {
        self.labelled.as_ref().filter(|_| has_labels).map_or(&self.rotation, |[linear, _]| linear)
    }
}

/// All races, the usual augmentation first.
#[derive(Clone, Debug)]
pub struct Advice {
    /// One for each race.
    pub findings: Vec<Finding>,
    /// Whether labels decided.
    pub has_labels: bool,
    /// Epochs of each race.
    pub epochs: usize,
    /// Side of the crops of each race.
    pub size: usize,
    /// Images of each race.
    pub images: usize,
}

impl Advice {
    /// The best of the races if it is better than the usual augmentation by more than chance, else that.
    pub fn best(&self) -> &Finding {
        self.best_by(self.has_labels)
    }

    /// The same by labels or without them.
    pub fn best_by(&self, labels: bool) -> &Finding {
        let score = |finding: &Finding| finding.score(labels).top1;
        let best = self.findings.iter().max_by(|a, b| score(a).total_cmp(&score(b)));
        let best = best.filter(|it| it.score(labels).against(self.findings[0].score(labels)) == Comparison::Better);
        best.unwrap_or(&self.findings[0])
    }
}

/// What all races share.
struct Races {
    config: RunConfig,
    train: Split,
    /// Labelled training and test images, where there are labels.
    labelled: Option<(Split, Split)>,
    classes: usize,
    /// Training and test images, turned.
    turned: (Split, Split),
}

/// Races within about so many seconds. `begun` is told how many races there are, the time of one, and which comes next.
pub fn advise(
    data: &Dataset,
    overrides: &Overrides,
    seconds: f64,
    mut begun: impl FnMut(usize, f64, &[Keep]),
) -> Result<Advice, AdviseError> {
    let mut races = Races::prepare(data, overrides)?;
    let singles: Vec<Keep> = Keep::NAMES.iter().map(|(_, keep)| *keep).collect();
    let singles: Vec<Keep> = singles.into_iter().filter(|keep| races.config.is_changed_by(*keep)).collect();
    let count = singles.len() + 2;
    let forecast = Forecast::measure(&races.config, &races.train)?;
    let epochs = forecast.epochs_in(TRAINING * seconds / count as f64).clamp(FEWEST, MOST);
    races.config.train.epochs = epochs;
    races.config.learning_rate.warmup_epochs = (epochs as f64 / 10.0).min(races.config.learning_rate.warmup_epochs);
    let one = forecast.seconds() / forecast.epochs as f64 * epochs as f64 / TRAINING;
    let has_labels = races.labelled.is_some();
    let mut findings: Vec<Finding> = Vec::new();
    for kept in std::iter::once(Vec::new()).chain(singles.iter().map(|keep| vec![*keep])) {
        begun(count, one, &kept);
        findings.push(races.run(kept)?);
    }
    // Together what each helped by more than chance; where fewer than two did, the best two that helped at all.
    let usual = *findings[0].score(has_labels);
    let mut helped: Vec<&Finding> = findings[1..].iter().filter(|it| it.score(has_labels).top1 > usual.top1).collect();
    helped.sort_by(|a, b| b.score(has_labels).top1.total_cmp(&a.score(has_labels).top1));
    let clear = helped.iter().filter(|it| it.score(has_labels).against(&usual) == Comparison::Better).count();
    let together: Vec<Keep> = helped.iter().take(clear.max(2)).flat_map(|it| it.kept.clone()).collect();
    if together.len() > 1 {
        begun(count, one, &together);
        findings.push(races.run(together)?);
    }
    Ok(Advice { findings, has_labels, epochs, size: races.config.augment.views[0].size, images: races.train.len() })
}

impl RunConfig {
    fn is_changed_by(&self, keep: Keep) -> bool {
        let mut kept = self.augment.clone();
        kept.keep(keep);
        kept != self.augment
    }
}

impl Races {
    /// The user's method and augmentation on a small encoder and small crops.
    fn prepare(data: &Dataset, overrides: &Overrides) -> Result<Self, AdviseError> {
        let real = RunConfig::resolve(&data.describe(), overrides).map_err(TrainError::from)?;
        let train = data.train.spread(IMAGES);
        let described = data.describe();
        let side = real.augment.views[0].size;
        let size = SIZE.min(side);
        let mut settings = overrides.clone();
        settings.lay("encoder.name", Value::String(ENCODER.into()));
        settings.lay("data.image_size", Value::Integer(size as i64));
        settings.lay("train.batch", Value::Integer(BATCH.min(train.len() / 2).max(2) as i64));
        settings.lay("train.epochs", Value::Integer(MOST as i64));
        let small = Description { samples: train.len(), ..described };
        let mut config = RunConfig::resolve(&small, &settings).map_err(TrainError::from)?;
        config.augment = real.augment;
        config.augment.views.iter_mut().for_each(|group| group.size = (group.size * size / side).max(8));
        config.data.eval_size = Some(size);
        let some = Dataset { train: train.clone(), test: None, ..data.clone() };
        let labelled = labelled_splits(&some).ok();
        let turned = rotated(&train).hold_out(5);
        if turned.1.is_empty() {
            return Err(EvalError::NoTest(data.title.clone()).into());
        }
        Ok(Self { config, train, labelled, classes: data.classes.len(), turned })
    }

    fn run(&self, kept: Vec<Keep>) -> Result<Finding, AdviseError> {
        let mut config = self.config.clone();
        kept.iter().for_each(|keep| config.augment.keep(*keep));
        let compute = open_device(config.train.device)?;
        let mut trainer = Trainer::new(&config, self.train.len(), &compute)?;
        trainer.train(None, Arc::new(self.train.clone()), &Group::solo(), |_| ControlFlow::Continue(()))?;
        let weights = Run::exported(&config, &trainer.checkpoint());
        drop(trainer);
        let encoder = FrozenEncoder::load(&config.model(), &weights, &config.augment, config.eval_size(), compute)?;
        let features = |split: &Split| encoder.extract(split, |_| {});
        let labelled = match &self.labelled {
            None => None,
            Some((train, test)) => {
                let (train, test) = (features(train)?, features(test)?);
                let knn = knn_accuracy(&train, &test, self.classes, NEIGHBOURS);
                Some([linear_fast(train, test, self.classes).0, knn])
            }
        };
        let (train, test) = (features(&self.turned.0)?, features(&self.turned.1)?);
        let rankme = rankme(&test.features);
        Ok(Finding { kept, labelled, rotation: linear_fast(train, test, 4).0, rankme })
    }
}

/// exp(−Σ pₖ ln pₖ), pₖ = σₖ/Σσ, of features as they are. RankMe's equation 1.
pub fn rankme(features: &Matrix) -> f64 {
    let x = features.mapv(f64::from);
    let gram = if x.nrows() < x.ncols() { x.dot(&x.t()) } else { x.t().dot(&x) };
    let values = DMatrix::from_iterator(gram.nrows(), gram.ncols(), gram.iter().copied()).symmetric_eigenvalues();
    let singular: Vec<f64> = values.iter().map(|value| value.max(0.0).sqrt()).collect();
    let total: f64 = singular.iter().sum();
    let entropy = |s: &f64| if *s > 0.0 { -(s / total) * (s / total).ln() } else { 0.0 };
    singular.iter().map(entropy).sum::<f64>().exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(kept: &[Keep], linear: f64, rotation: f64) -> Finding {
        let of = |top1: f64| Accuracy { top1, top5: 1.0, interval: [0.0, 1.0], images: 500 };
        let labelled = Some([of(linear), of(linear)]);
        Finding { kept: kept.to_vec(), labelled, rotation: of(rotation), rankme: 3.0 }
    }

    #[test]
    fn only_what_is_better_than_chance_is_advised() {
        let advice = |linear: f64, rotation: f64| {
            let findings = vec![finding(&[], 0.4, 0.5), finding(&[Keep::Colour], linear, rotation)];
            Advice { findings, has_labels: true, epochs: 1, size: 8, images: 10 }
        };
        assert_eq!(advice(0.6, 0.5).best().kept, [Keep::Colour]);
        assert!(advice(0.42, 0.9).best().kept.is_empty(), "within chance");
        assert!(advice(0.6, 0.51).best_by(false).kept.is_empty(), "without labels it is not seen");
    }

    #[test]
    fn races_are_run_on_images_with_and_without_labels() {
        let mut overrides = Overrides::default();
        for setting in ["data.limit=60", "data.image_size=8", "encoder.width=0.25", "head.hidden=16", "head.output=8"] {
            overrides.set(setting).unwrap();
        }
        let (_, mut data) = RunConfig::open(&overrides).unwrap();
        let told = std::cell::RefCell::new(Vec::new());
        let run = |data: &Dataset| {
            advise(data, &overrides, 0.0, |count, _, kept| told.borrow_mut().push((count, kept.to_vec())))
        };
        let advice = run(&data).unwrap();
        assert!(advice.has_labels && advice.epochs == FEWEST);
        assert!(advice.findings.len() >= 4 && advice.findings[0].kept.is_empty());
        assert_eq!(told.borrow().len(), advice.findings.len());
        assert!(advice.findings.iter().all(|it| it.rankme >= 1.0 && it.labelled.is_some()));
        data.train = Split::new(Arc::new(rotated_source(&data.train)), None);
        let blind = run(&data).unwrap();
        assert!(!blind.has_labels && blind.findings.iter().all(|it| it.labelled.is_none()));
    }

    fn rotated_source(split: &Split) -> impl crate::data::Source + use<> {
        rotated::Rotated(split.clone())
    }

    #[test]
    fn rankme_counts_directions() {
        assert!((rankme(&ndarray::array![[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]]) - 2.0).abs() < 1e-9);
        assert!((rankme(&ndarray::array![[1.0, 2.0], [2.0, 4.0]]) - 1.0).abs() < 1e-3);
    }
}
