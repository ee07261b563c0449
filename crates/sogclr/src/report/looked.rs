//! What an encoder makes of some of a run's training images: the part of a report that needs images.

use super::picture::{fitted, rgb};
use crate::augment::AugmentConfig;
use crate::batch::render;
use crate::config::RunConfig;
use crate::data::{Image, Samples, Split};
use crate::encoder::Compute;
use crate::eval::{FrozenEncoder, Labelled, NEIGHBOURS, knn_among};
use crate::math::{Isa, Layout, Matrix, Purpose, SampleRng, UnitRows, map_rows};
use crate::state::LOG_U;
use crate::train::Run;
use crate::trained::{TrainedError, TrainedRun};
use image::RgbImage;
use ndarray::Axis;

/// Images that are looked at: small ones, and those that take longer than this many pixels on a side.
const MANY: usize = 2000;
const FEW: usize = 500;
const LARGE: usize = 96;
/// Longer side of a picture in a report.
const SIDE: u32 = 96;
/// Images whose views are shown, and views of each.
const VIEWED: usize = 6;
const VIEWS: usize = 6;
/// Images at either end of u.
const EXTREMES: usize = 12;

/// A training image in a report.
pub struct Shown {
    /// As [`Split::name`] gives it.
    pub name: String,
    /// Its class, where it has one.
    pub class: Option<u32>,
    /// Its first caption, where it has one.
    pub caption: Option<String>,
    /// Small.
    pub picture: RgbImage,
}

/// An image beside what training makes of it.
pub struct Viewed {
    /// As it is.
    pub original: Shown,
    /// As the encoder saw it in the first epoch.
    pub views: Vec<RgbImage>,
}

/// Images by their u, the moving average of how many others are like them.
pub struct Extremes {
    /// The largest ln u first.
    pub crowded: Vec<(Shown, f32)>,
    /// The smallest ln u first.
    pub isolated: Vec<(Shown, f32)>,
    /// Images that have been visited.
    pub seen: usize,
}

/// What the nearest neighbours of images say about their class.
pub struct Votes {
    /// Share of images whose vote is right, of the untrained encoder and of this one.
    pub shares: [f64; 2],
    /// Images by class and by the class that the vote of this encoder gives. `[classes][classes]`
    pub confusion: Vec<Vec<usize>>,
}

/// Some images, and what an encoder makes of them.
pub struct Looked {
    /// The images.
    pub images: Vec<Shown>,
    /// Features of length one. `[images, dimension]`
    pub features: UnitRows,
    /// Names of the classes; none without labels.
    pub classes: Vec<String>,
    /// Where there are at least two classes.
    pub votes: Option<Votes>,
    /// Originals beside views.
    pub viewed: Vec<Viewed>,
    /// Where the method keeps u.
    pub extremes: Option<Extremes>,
    /// Training images of the run.
    pub samples: usize,
}

impl Looked {
    /// Images that are looked at, at most.
    fn most(config: &RunConfig) -> usize {
        if config.eval_size() > LARGE { FEW } else { MANY }
    }

    /// How many times an image goes through an encoder.
    pub(super) fn passes(run: &TrainedRun) -> usize {
        let count = run.train_len().unwrap_or_default().min(Self::most(&run.config));
        count * if run.config.text.is_none() { 2 } else { 1 }
    }

    /// Looks at the training images of `run` with its newest encoder and with the one that it started from.
    pub fn at(run: &TrainedRun, compute: Compute, progress: impl Fn(usize) + Sync) -> Result<Self, TrainedError> {
        let data = run.data()?;
        let (split, config) = (&data.train, &run.config);
        let ids = chosen(split.len(), Self::most(config), config.seed);
        let features = |encoder: FrozenEncoder| encoder.features_at(split, &ids, &progress);
        let after = features(run.encoder(compute.clone())?)?;
        let labels: Option<Vec<u32>> = ids.iter().map(|&id| split.label(id)).collect();
        let votes = match labels.filter(|_| data.classes.len() > 1 && ids.len() > 1) {
            Some(labels) => {
                let before = features(run.untrained_encoder(compute))?;
                Some(Votes::of(&before, &after, &labels, data.classes.len()))
            }
            None => None,
        };
        let images = ids.iter().map(|&id| shown(split, id)).collect::<Result<_, _>>()?;
        let viewed = viewed(split, &ids, config)?;
        let extremes = extremes(run, split)?;
        let features = UnitRows::new(after);
        Ok(Self { images, features, classes: data.classes.clone(), votes, viewed, extremes, samples: split.len() })
    }

    /// The `count` images nearest to image `of`, and their cosine similarities.
    pub fn nearest(&self, of: usize, count: usize) -> Vec<(usize, f32)> {
        let row = self.features.matrix().row(of).insert_axis(Axis(0));
        let similar = map_rows(Isa::best(), row, self.features.matrix().view(), |_, s| s.to_vec()).concat();
        let mut others: Vec<(usize, f32)> = similar.into_iter().enumerate().filter(|&(at, _)| at != of).collect();
        others.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        others.truncate(count);
        others
    }
}

/// Some of `count` images, in their order.
fn chosen(count: usize, most: usize, seed: u64) -> Vec<usize> {
    let mut ids = SampleRng::new(seed, Purpose::Subset, 1, 0, 0).permutation(count);
    ids.truncate(most);
    ids.sort_unstable();
    ids
}

fn shown(split: &Split, id: usize) -> Result<Shown, TrainedError> {
    let picture = fitted(&rgb(&split.image(id)?), SIDE);
    Ok(Shown { name: split.name(id), class: split.label(id), caption: split.captions(id).first().cloned(), picture })
}

impl Votes {
    fn of(before: &Matrix, after: &Matrix, labels: &[u32], classes: usize) -> Self {
        let labelled = |features: &Matrix| Labelled { features: features.clone(), labels: labels.to_vec() };
        let voted = [before, after].map(|features| knn_among(&labelled(features), classes, NEIGHBOURS));
        let right = |voted: &[u32]| voted.iter().zip(labels).filter(|(vote, label)| vote == label).count();
        let shares = [&voted[0], &voted[1]].map(|voted| right(voted) as f64 / labels.len() as f64);
        let mut confusion = vec![vec![0; classes]; classes];
        for (&label, &vote) in labels.iter().zip(&voted[1]) {
            confusion[label as usize][vote as usize] += 1;
        }
        Self { shares, confusion }
    }
}

fn viewed(split: &Split, ids: &[usize], config: &RunConfig) -> Result<Vec<Viewed>, TrainedError> {
    let step = (ids.len() / VIEWED).max(1);
    let ids: Vec<usize> = ids.iter().copied().step_by(step).take(VIEWED).collect();
    let groups = config.augment.views.iter().flat_map(|group| std::iter::repeat_n(group, group.count)).take(VIEWS);
    let groups: Vec<_> = groups.collect();
    let mut pixels: Vec<Vec<Vec<f32>>> = vec![Vec::new(); ids.len()];
    let layout = Layout::ChannelsLast;
    render(split, &config.augment, layout, &ids, pixels.iter_mut().collect(), |augmenter, image, id, out| {
        for (view, group) in groups.iter().enumerate() {
            let mut values = vec![0.0; group.size * group.size * config.augment.channels()];
            augmenter.view(image, group, &mut SampleRng::augment(config.seed, 0, id, view), &mut values);
            out.push(values);
        }
    })?;
    let picture = |(values, size): (Vec<f32>, usize)| fitted(&rgb(&as_seen(values, size, &config.augment)), SIDE);
    ids.iter()
        .zip(pixels)
        .map(|(&id, pixels)| {
            let sizes = groups.iter().map(|group| group.size);
            Ok(Viewed { original: shown(split, id)?, views: pixels.into_iter().zip(sizes).map(picture).collect() })
        })
        .collect()
}

/// A normalised view as an image again: x·std + mean.
fn as_seen(mut values: Vec<f32>, size: usize, augment: &AugmentConfig) -> Image {
    let channels = augment.channels();
    for (at, value) in values.iter_mut().enumerate() {
        *value = (*value * augment.std[at % channels] + augment.mean[at % channels]).clamp(0.0, 1.0);
    }
    Image::new(size, size, channels, Samples::F32(values))
}

/// `None` for a method without u.
fn extremes(run: &TrainedRun, split: &Split) -> Result<Option<Extremes>, TrainedError> {
    let (checkpoint, _) = Run::read_latest(run.folder())?;
    let Some((_, column)) = checkpoint.state.columns().find(|(name, _)| *name == LOG_U) else { return Ok(None) };
    let visited = column.iter().copied().enumerate().filter(|(_, value)| value.is_finite());
    let mut order: Vec<(usize, f32)> = visited.collect();
    if order.is_empty() {
        return Ok(None);
    }
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let some = |chosen: &mut dyn Iterator<Item = &(usize, f32)>| {
        chosen
            .take(EXTREMES)
            .map(|&(id, value)| Ok((shown(split, id)?, value)))
            .collect::<Result<Vec<_>, TrainedError>>()
    };
    let (crowded, isolated) = (some(&mut order.iter())?, some(&mut order.iter().rev())?);
    Ok(Some(Extremes { crowded, isolated, seen: order.len() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn an_image_does_not_vote_for_itself() {
        // Two points of class 0 about one direction, two of class 1 about another, and one of class 1 among those of class 0.
        let features = array![[1.0, 0.0], [1.0, 0.02], [0.0, 1.0], [0.02, 1.0], [1.0, 0.01]];
        let votes = Votes::of(&features, &features, &[0, 0, 1, 1, 1], 2);
        assert_eq!(votes.confusion, [[0, 2], [1, 2]]);
        assert_eq!(votes.shares, [0.4; 2], "the third and the fourth");
    }

    #[test]
    fn the_images_that_are_looked_at_are_spread_and_stay_the_same() {
        let ids = chosen(5000, 2000, 7);
        assert_eq!((ids.len(), chosen(5000, 2000, 7) == ids, chosen(5000, 2000, 8) == ids), (2000, true, false));
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids[0] < 50 && ids[1999] > 4950, "from all of them: {} {}", ids[0], ids[1999]);
        assert_eq!(chosen(3, 2000, 7), [0, 1, 2]);
    }

    #[test]
    fn a_view_becomes_what_it_was_before_it_was_normalised() {
        let mut augment = AugmentConfig::preset(crate::augment::Preset::Grey, 8);
        (augment.mean, augment.std) = (vec![0.5, 0.2, 0.0], vec![0.25, 2.0, 1.0]);
        let image = as_seen(vec![1.0, 0.1, -4.0], 1, &augment);
        assert_eq!(image.data, Samples::F32(vec![0.75, 0.4, 0.0]), "what lies outside is cut");
    }
}
