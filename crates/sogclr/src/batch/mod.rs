//! Batches of augmented views, made ahead of the step that uses them.
//!
//! The order of samples is a function of (seed, epoch), the pixels of (seed, epoch, sample, view) and the caption of
//! (seed, epoch, sample): a run that
//! starts in the middle of an epoch sees exactly what an uninterrupted one would.

mod crops;
mod share;
mod texts;

pub use crops::Crops;
pub use share::Share;
pub use texts::Texts;

use crate::augment::{AugmentConfig, Augmenter};
use crate::comm::Group;
use crate::data::{DataError, Image, Split};
use crate::math::{Layout, Matrix, Purpose, SampleRng};
use rayon::prelude::*;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

/// Batches waiting for the step.
const PREFETCH: usize = 2;

/// Which samples meet in which step.
#[derive(Clone, Debug)]
pub struct BatchPlan {
    /// Training samples.
    pub samples: usize,
    /// Samples of a step, over all ranks.
    pub batch: usize,
    /// Passes over the data.
    pub epochs: usize,
    /// Seed of the order.
    pub seed: u64,
}

impl BatchPlan {
    /// The last, smaller batch of an epoch is dropped.
    pub fn steps_per_epoch(&self) -> usize {
        self.samples / self.batch
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> usize {
        self.epochs * self.steps_per_epoch()
    }

    /// The order in which `epoch` visits the samples.
    pub fn order(&self, epoch: usize) -> Vec<u32> {
        SampleRng::new(self.seed, Purpose::Shuffle, epoch as u64, 0, 0).order(self.samples)
    }
}

/// One global batch; pixels only of this rank's share.
pub struct Batch {
    /// Number of the step, from 0.
    pub step: usize,
    /// Number of the pass over the data, from 0.
    pub epoch: usize,
    /// Sample ids of the global batch.
    pub ids: Vec<usize>,
    /// The places in `ids` whose samples this rank holds; all of them in one process.
    pub share: Share,
    /// Classes of the global batch, where the data has them.
    pub labels: Option<Vec<u32>>,
    /// The crop groups; the first holds the large ones.
    pub crops: Vec<Crops>,
    /// The tiles of a shuffled jigsaw, where the augmentation makes one.
    pub tiles: Option<Crops>,
    /// The captions, for image–text pairs.
    pub texts: Option<Texts>,
}

impl Batch {
    /// One large view of every sample of the batch, from all ranks.
    pub fn whole_view(&self, view: usize, group: &Group) -> Crops {
        let (crops, share) = (&self.crops[0], self.share.len());
        let ours = crops.pixels[view * share * crops.area()..][..share * crops.area()].to_vec();
        let ours = Matrix::from_shape_vec((share, crops.area()), ours).expect("whole crops");
        let pixels = self.share.gather(group, ours).into_raw_vec_and_offset().0;
        Crops { count: 1, pixels, ..*crops }
    }
}

/// What is made of a sample.
#[derive(Clone)]
pub struct Rendering {
    /// How views are made of an image.
    pub augment: AugmentConfig,
    /// Tokens of a caption, for image–text pairs.
    pub context: Option<usize>,
    /// Seed of every random choice.
    pub seed: u64,
    /// The order of pixels that the network wants.
    pub layout: Layout,
}

/// Decodes each of the images `ids` once, in parallel, and lets `draw` fill its place with views. Training, evaluation and theory
/// come by here.
pub fn render<T: Send>(
    split: &Split,
    augment: &AugmentConfig,
    layout: Layout,
    ids: &[usize],
    places: Vec<T>,
    draw: impl Fn(&mut Augmenter, &Image, usize, T) + Sync,
) -> Result<(), DataError> {
    places.into_par_iter().zip(ids).try_for_each_init(
        || Augmenter::new(augment, layout),
        |augmenter, (place, &id)| {
            let image = split.image(id)?;
            let (given, wanted) = (image.channels, augment.channels());
            if given != wanted && !(given == 1 && wanted == 3) {
                let cause = format!("it has {given} channels, the others {wanted}");
                return Err(DataError::Decode { name: split.name(id), cause });
            }
            draw(augmenter, &image, id, place);
            Ok(())
        },
    )
}

/// Makes batches on a thread of its own, with the pixels computed by the shared pool.
pub struct Loader {
    receiver: Receiver<Result<Batch, DataError>>,
}

impl Loader {
    /// This rank's part of the batches from `first_step` to the end of the plan.
    pub fn start(split: Arc<Split>, rendering: Rendering, plan: BatchPlan, first_step: usize, share: Share) -> Self {
        let (sender, receiver) = sync_channel(PREFETCH);
        std::thread::spawn(move || {
            let (mut epoch, mut order) = (usize::MAX, Vec::new());
            for step in first_step..plan.total_steps() {
                let now = step / plan.steps_per_epoch();
                if now != epoch {
                    (epoch, order) = (now, plan.order(now));
                }
                let first = step % plan.steps_per_epoch() * plan.batch;
                let ids = order[first..first + plan.batch].iter().map(|&id| id as usize).collect();
                let batch = render_batch(&split, &rendering, step, epoch, ids, share);
                let failed = batch.is_err();
                // The receiver is gone once training stops.
                if sender.send(batch).is_err() || failed {
                    return;
                }
            }
        });
        Self { receiver }
    }

    /// The next batch; `None` after the last.
    pub fn next_batch(&self) -> Option<Result<Batch, DataError>> {
        self.receiver.recv().ok()
    }
}

fn render_batch(
    split: &Split,
    rendering: &Rendering,
    step: usize,
    epoch: usize,
    ids: Vec<usize>,
    ours: Share,
) -> Result<Batch, DataError> {
    let Rendering { augment, context, seed, layout } = rendering;
    let (share, seed, channels) = (ours.len(), *seed, augment.channels());
    let new = |count: usize, size: usize| Crops::new(count, size, channels, share, *layout);
    let mut crops: Vec<Crops> = augment.views.iter().map(|group| new(group.count, group.size)).collect();
    let mut tiles = augment.jigsaw.as_ref().map(|jigsaw| new(jigsaw.tiles(), jigsaw.tile_size(augment.views[0].size)));
    // places[i] = where sample i's views go, in every group, and its tiles
    let mut places: Vec<(Vec<Slot>, Vec<&mut [f32]>)> = (0..share).map(|_| (Vec::new(), Vec::new())).collect();
    let mut first_view = 0;
    for (g, group) in crops.iter_mut().enumerate() {
        let area = group.area();
        for (place, out) in group.pixels.chunks_exact_mut(area).enumerate() {
            places[place % share].0.push((g, first_view + place / share, out));
        }
        first_view += group.count;
    }
    if let Some(tiles) = &mut tiles {
        let area = tiles.area();
        for (place, out) in tiles.pixels.chunks_exact_mut(area).enumerate() {
            places[place % share].1.push(out);
        }
    }
    let ours_ids: Vec<usize> = ours.places().into_iter().map(|place| ids[place]).collect();
    render(split, augment, *layout, &ours_ids, places, |augmenter, image, id, (slots, mut tiles)| {
        for (group, view, out) in slots {
            let mut rng = SampleRng::augment(seed, epoch, id, view);
            augmenter.view(image, &augment.views[group], &mut rng, out);
        }
        if let Some(config) = &augment.jigsaw {
            let mut rng = SampleRng::augment(seed, epoch, id, first_view);
            augmenter.jigsaw(image, config, &mut rng, &mut tiles);
        }
    })?;
    let texts = context.map(|context| Texts::draw(split, &ours_ids, seed, epoch, context));
    let labels = ids.iter().map(|&id| split.label(id)).collect();
    Ok(Batch { step, epoch, ids, share: ours, labels, crops, tiles, texts })
}

/// Group of crops, view, and where the view goes.
type Slot<'a> = (usize, usize, &'a mut [f32]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::{CropGroup, Jigsaw, Preset};
    use crate::comm::threads;
    use crate::data::{DataConfig, Dataset};

    fn split() -> Arc<Split> {
        let config = DataConfig { limit: Some(50), ..Default::default() };
        Arc::new(Dataset::open(&config, 0).unwrap().train)
    }

    fn augment() -> Rendering {
        let mut config = AugmentConfig::preset(Preset::Grey, 12);
        config.views.push(CropGroup { count: 1, size: 8, scale: [0.05, 0.14] });
        config.jigsaw = Some(Jigsaw { grid: 3, scale: [0.6, 1.0] });
        Rendering { augment: config, context: None, seed: 1, layout: Layout::ChannelsFirst }
    }

    fn pixels(batch: &Batch) -> Vec<&[f32]> {
        batch.crops.iter().chain(&batch.tiles).map(|crops| crops.pixels.as_slice()).collect()
    }

    fn plan() -> BatchPlan {
        BatchPlan { samples: 50, batch: 8, epochs: 2, seed: 3 }
    }

    #[test]
    fn starting_in_the_middle_gives_the_same_batches() {
        let whole = Loader::start(split(), augment(), plan(), 0, Share::whole(8));
        let all: Vec<Batch> = std::iter::from_fn(|| whole.next_batch()).map(Result::unwrap).collect();
        assert_eq!(all.len(), 12);
        assert_eq!(all[0].crops[0].pixels.len(), 2 * 8 * 3 * 144);
        let late = Loader::start(split(), augment(), plan(), 7, Share::whole(8));
        let batch = late.next_batch().unwrap().unwrap();
        assert_eq!((batch.step, batch.epoch), (7, 1));
        assert_eq!(batch.ids, all[7].ids);
        assert_eq!(pixels(&batch), pixels(&all[7]));
        assert_ne!(pixels(&all[0]), pixels(&all[6]));
    }

    #[test]
    fn one_thread_and_three_make_the_same_pixels() {
        let render_with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                pixels(&render_batch(&split(), &augment(), 0, 0, (0..10).collect(), Share::whole(10)).unwrap()).concat()
            })
        };
        assert_eq!(render_with(1), render_with(3));
    }

    #[test]
    fn ranks_share_the_batch_without_changing_pixels() {
        let whole = render_batch(&split(), &augment(), 0, 0, (0..8).collect(), Share::whole(8)).unwrap();
        let half = Share::of(&threads(2)[1], 8, 1, None).unwrap();
        let second = render_batch(&split(), &augment(), 0, 0, (0..8).collect(), half).unwrap();
        let view = 3 * 12 * 12;
        assert_eq!(
            second.crops[0].pixels[..4 * view],
            whole.crops[0].pixels[4 * view..8 * view],
            "view 0 of samples 4–7"
        );
        assert_eq!(
            second.crops[0].pixels[4 * view..],
            whole.crops[0].pixels[12 * view..16 * view],
            "view 1 of samples 4–7"
        );
    }
}
