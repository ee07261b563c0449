//! Checks before the hours are spent: every value is possible, and possible for this data. Each part checks itself; what is
//! here concerns several of them.

use super::{ConfigError, DeviceName, RunConfig, TrainConfig};
use crate::check::{Problem, require};
use crate::data::{Description, Modality};
use crate::encoder::Precision;
use crate::method::Spec;

impl RunConfig {
    /// Refuses what cannot work with such data.
    pub fn validate(&self, data: &Description) -> Result<(), ConfigError> {
        self.check_values(data)?;
        match self.train.device {
            DeviceName::Wgpu if cfg!(not(feature = "wgpu")) => Err(ConfigError::Device("wgpu")),
            DeviceName::Cuda if cfg!(not(feature = "cuda")) => Err(ConfigError::Device("cuda")),
            _ => Ok(()),
        }
    }

    fn check_values(&self, data: &Description) -> Result<(), Problem> {
        let (samples, batch, method) = (data.samples, self.train.batch, self.method.spec());
        require(samples >= 2, "data", || {
            format!("has {samples} training images: contrastive learning needs at least 2, better hundreds")
        })?;
        self.train.check(samples)?;
        method.check()?;
        method.check_setting(samples, batch)?;
        self.check_chunks(method)?;
        self.optimizer.check()?;
        self.check_modality(method, data.modality)?;
        self.learning_rate.check(self.train.epochs, samples / batch)?;
        self.check_views(method)?;
        self.augment.check(data.channels)?;
        self.encoder.spec().check(self.augment.views[0].size)?;
        check_precision(self.train.precision, self.train.device)?;
        self.check_eval_size(self.eval_size())?;
        self.check_labels(method, data.classes)
    }

    /// Refuses a size of images at evaluation that the encoder does not take.
    pub fn check_eval_size(&self, size: usize) -> Result<(), Problem> {
        let (key, crop, encoder) = ("data.eval_size", self.augment.views[0].size, self.encoder.spec());
        require((8..=4096).contains(&size), key, || format!("is {size}; it must lie between 8 and 4096 pixels"))?;
        require(size == crop || !encoder.has_one_size(), key, || {
            format!(
                "is {size}, but {} was trained on {crop} pixels and takes no other size: leave it out",
                encoder.name()
            )
        })?;
        encoder.check(size).map_err(|problem| Problem::new(key, format!("is {size}; {problem}")))
    }

    /// Batch norm sees whole groups.
    fn check_chunks(&self, method: &dyn Spec) -> Result<(), Problem> {
        let Some(micro) = self.train.micro_batch else { return Ok(()) };
        let (batch, name, groups) = (self.train.batch, self.method.name(), method.norm_groups());
        require(micro >= 2 && batch.is_multiple_of(micro), "train.micro_batch", || {
            format!("is {micro}; it must divide the batch of {batch} into chunks of at least 2 images")
        })?;
        let group = batch / groups;
        require(groups == 1 || micro.is_multiple_of(group), "train.micro_batch", || {
            format!("is {micro}; {name} normalises {group} images together, so use a multiple of {group}")
        })
    }

    /// Images alone have a head, pairs a text encoder.
    fn check_modality(&self, method: &dyn Spec, data: Modality) -> Result<(), Problem> {
        let (name, modality) = (self.method.name(), method.modality());
        require(modality == data, "method.kind", || match modality {
            Modality::Pairs => {
                format!("is {name}, which is for image–text pairs, and the data has no texts: name some as data.pairs")
            }
            Modality::Images => format!("is {name}, which is for images alone, and the data has texts"),
        })?;
        match (modality, &self.head, &self.text) {
            (Modality::Pairs, Some(_), _) => Err(Problem::new("head", "is given, but image–text pairs have no head")),
            (Modality::Pairs, None, None) => {
                Err(Problem::new("text", "is missing; image–text pairs need a text encoder"))
            }
            (Modality::Images, _, Some(_)) => {
                Err(Problem::new("text", "is given, but the data has no texts: name some as data.pairs"))
            }
            (Modality::Images, head, None) => head.as_ref().map_or(Ok(()), |head| head.check()),
            (Modality::Pairs, None, Some(text)) => {
                text.check()?;
                let (fixed, spec) = (text.output.filter(|_| self.encoder.spec().is_embedding()), self.encoder.spec());
                require(fixed.is_none_or(|output| output == spec.feature_dim()), "text.output", || {
                    format!("is set, but {} fixes it to {}: leave it out", spec.name(), spec.feature_dim())
                })
            }
        }
    }

    /// As many views as the method takes, of sizes that the encoder takes.
    fn check_views(&self, method: &dyn Spec) -> Result<(), Problem> {
        let (key, name, augment) = ("augment.views", self.method.name(), &self.augment);
        let (views, large) = (augment.view_count(), augment.views.first().map_or(0, |group| group.count));
        require(views >= 1, key, || "has no crops".into())?;
        let is_pairs = method.modality() == Modality::Pairs;
        require(!is_pairs || views == 1, key, || {
            format!("has {views} crops of each image; image–text pairs take exactly 1")
        })?;
        require(is_pairs || large >= 2, key, || format!("has {large} crop in its first group; positives need 2"))?;
        require(!method.is_two_view() || (views == 2 && large == 2), key, || {
            format!("has {views} crops of each image; {name} takes exactly 2 of one size")
        })?;
        let encoder = self.encoder.spec();
        let is_one_size = augment.views.len() == 1 && augment.jigsaw.is_none();
        require(!encoder.has_one_size() || is_one_size, key, || {
            format!("has crops of several sizes; {} takes images of one size, a ResNet any", encoder.name())
        })?;
        match (&augment.jigsaw, method.needs_jigsaw()) {
            (Some(_), false) => Err(Problem::new("augment.jigsaw", format!("is given, but {name} has no use for it"))),
            (None, true) => Err(Problem::new("augment.jigsaw", format!("is missing; {name} needs it"))),
            _ => Ok(()),
        }
    }

    fn check_labels(&self, method: &dyn Spec, classes: Option<usize>) -> Result<(), Problem> {
        let problem = match classes {
            _ if !method.needs_labels() => return Ok(()),
            None => "the data has none: sort the images into one folder for each class",
            Some(1) => "the data has one class only: add images of another class, or choose a method without labels",
            Some(_) => return Ok(()),
        };
        Err(Problem::new("method", format!("{} needs labels, and {problem}", self.method.name())))
    }
}

/// Refuses a precision that the device does not have.
pub fn check_precision(precision: Precision, device: DeviceName) -> Result<(), Problem> {
    require(precision == Precision::F32 || device.is_cpu(), "train.precision", || {
        "is bf16, which the kernels of the CPU have alone: leave it out, or set train.device to cpu".into()
    })
}

impl TrainConfig {
    /// Refuses what cannot work with `samples` training images.
    pub fn check(&self, samples: usize) -> Result<(), Problem> {
        let (batch, epochs, minutes) = (self.batch, self.epochs, self.checkpoint_minutes);
        require(batch >= 2, "train.batch", || format!("is {batch}; a contrastive batch has at least 2 images"))?;
        require(batch <= samples, "train.batch", || {
            format!("is {batch}, but there are only {samples} training images: lower it")
        })?;
        require((1..=1_000_000).contains(&epochs), "train.epochs", || {
            format!("is {epochs}; it must lie between 1 and 1000000")
        })?;
        require((0.0..=1e5).contains(&minutes), "train.checkpoint_minutes", || {
            format!("is {minutes}; it must lie between 0 and 100000")
        })?;
        require(self.keep_every != Some(0), "train.keep_every", || "is 0; leave it out to keep none".into())
    }
}
