//! Time and memory of the list of a run's images: what is kept of each beside its state.

use crate::batch::BatchPlan;
use crate::data::{CheckImages, DataError, Dataset, Dimensions, Fingerprint, Image, Manifest, Names, Source, Split};
use crate::system::{peak_rss_mb, rss_mb};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// What a list of images takes.
#[derive(Clone, Debug, Serialize)]
pub struct IndexSpeed {
    /// Training images.
    pub samples: usize,
    /// To list them and their classes.
    pub open_s: f64,
    /// To check them, or to know that they were checked, and to make the manifest.
    pub check_s: f64,
    /// To compare them with the manifest, as a resumed run does.
    pub verify_s: f64,
    /// To draw the order of an epoch.
    pub order_s: f64,
    /// Memory that stays resident once all of that is done, a sample, where the system tells.
    pub resident_bytes_per_sample: Option<f64>,
    /// Most of it at once, a sample.
    pub peak_bytes_per_sample: Option<f64>,
    /// Of the manifest on disk.
    pub disk_bytes_per_sample: f64,
}

/// Measures the training images that `open` gives, with their order in one epoch; the data is checked as `which` says.
pub fn measure_index(
    open: impl FnOnce() -> Result<Dataset, DataError>,
    which: CheckImages,
    progress: impl Fn() + Sync,
) -> Result<IndexSpeed, DataError> {
    let before = (rss_mb(), peak_rss_mb());
    let (data, open_s) = timed(open)?;
    let mut split = data.train;
    let samples = split.len();
    let (mut manifest, check_s) = timed(|| {
        let checked = Manifest::check(&split, 0..samples, which, 0, progress)?;
        Ok(Manifest::of(&mut split, vec![checked], true)?.0)
    })?;
    let bytes = std::io::copy(&mut manifest.content()?, &mut std::io::sink()).map_err(DataError::Scratch)?;
    let ((), verify_s) = timed(|| manifest.verify(&mut split))?;
    let plan = BatchPlan { samples: split.len(), batch: 1, epochs: 1, seed: 0 };
    let (order, order_s) = timed(|| Ok(plan.order(0)))?;
    let more = |before: Option<f64>, after: Option<f64>| Some((after? - before?) * 1_048_576.0 / samples as f64);
    // The list, its classes and the order are all there.
    let (resident_bytes_per_sample, peak_bytes_per_sample) = (more(before.0, rss_mb()), more(before.1, peak_rss_mb()));
    drop((order, split));
    Ok(IndexSpeed {
        samples,
        open_s,
        check_s,
        verify_s,
        order_s,
        resident_bytes_per_sample,
        peak_bytes_per_sample,
        disk_bytes_per_sample: bytes as f64 / samples as f64,
    })
}

fn timed<T>(work: impl FnOnce() -> Result<T, DataError>) -> Result<(T, f64), DataError> {
    let began = Instant::now();
    Ok((work()?, began.elapsed().as_secs_f64()))
}

/// So many images that are nowhere, named like ImageNet's in classes of 1,300.
pub fn imagined(samples: usize) -> Result<Dataset, DataError> {
    let class = |index: usize| index / 1300;
    let name = |index: usize| format!("n{:08}/n{0:08}_{}.JPEG", 1_440_764 + 311 * class(index), 17 * (index % 1300));
    let names = (0..samples).map(name).collect();
    let labels = (0..samples).map(|index| class(index) as u32).collect();
    let train = Split::new(Arc::new(Imagined(names)), Some(labels));
    Dataset::new("imagined images", train)
}

struct Imagined(Names);

impl Source for Imagined {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        Err(DataError::Decode { name: self.name(index), cause: "it is imagined".into() })
    }

    fn name(&self, index: usize) -> String {
        self.0.get(index)
    }

    fn check(&self, index: usize) -> Result<Fingerprint, DataError> {
        Ok(Fingerprint { size: 110_000, ..Fingerprint::of(self.name(index).as_bytes()) })
    }

    fn dimensions(&self, _: usize) -> Result<Dimensions, DataError> {
        Ok(Dimensions { height: 375, width: 500, channels: 3 })
    }

    fn stamp(&self, index: usize) -> Option<(u64, u128)> {
        Some((110_000, 1_700_000_000_000_000_000 + 1_000_003 * index as u128))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_images_stays_within_its_bytes() {
        let speed = measure_index(|| imagined(5000), CheckImages::All, || {}).unwrap();
        assert_eq!(speed.samples, 5000);
        // 32 of them are the hash, 8 the time.
        assert!((46.0..64.0).contains(&speed.disk_bytes_per_sample), "{}", speed.disk_bytes_per_sample);
    }
}
