//! Checks before the hours are spent: every value is possible, and possible for this data.

use super::{ConfigError, DeviceName, RunConfig};
use crate::text::{CONTEXT, VOCABULARY};

impl RunConfig {
    /// Refuses what cannot work with `samples` training images.
    pub fn validate(&self, samples: usize) -> Result<(), ConfigError> {
        let require = |holds: bool, key: &str, problem: String| match holds {
            true => Ok(()),
            false => Err(ConfigError::Value { key: key.into(), problem }),
        };
        if samples < 2 {
            let problem =
                format!("has {samples} training images: contrastive learning needs at least 2, better hundreds");
            return Err(ConfigError::Value { key: "data".into(), problem });
        }
        let batch = self.train.batch;
        require(batch >= 2, "train.batch", format!("is {batch}; a contrastive batch has at least 2 images"))?;
        let problem = format!("is {batch}, but there are only {samples} training images: lower --batch");
        require(batch <= samples, "train.batch", problem)?;
        let epochs = self.train.epochs;
        let problem = format!("is {epochs}; it must lie between 1 and 1000000");
        require((1..=1_000_000).contains(&epochs), "train.epochs", problem)?;
        let minutes = self.train.checkpoint_minutes;
        let problem = format!("is {minutes}; it must lie between 0 and 100000");
        require((0.0..=1e5).contains(&minutes), "train.checkpoint_minutes", problem)?;
        require(self.train.keep_every != Some(0), "train.keep_every", "is 0; leave it out to keep none".into())?;

        let method = self.method.spec();
        let value = |(key, problem)| ConfigError::Value { key, problem };
        method.check().map_err(value)?;
        method.check_setting(samples, batch).map_err(value)?;
        if let Some(micro) = self.train.micro_batch {
            let group = batch / method.norm_groups();
            let problem = format!("is {micro}; it must divide the batch of {batch} into chunks of at least 2 images");
            require(micro >= 2 && batch.is_multiple_of(micro), "train.micro_batch", problem)?;
            let name = self.method.name();
            let problem =
                format!("is {micro}; {name} normalises {group} images together, so use a multiple of {group}");
            require(method.norm_groups() == 1 || micro.is_multiple_of(group), "train.micro_batch", problem)?;
        }
        self.optimizer.check().map_err(|(key, problem)| ConfigError::Value { key, problem })?;

        let is_pairs = method.pair_temperature().is_some();
        if let Some(head) = &self.head {
            require(!is_pairs, "head", "is given, but image–text pairs have no head".into())?;
            let problem = format!("is {}; heads have 2, 3 or 4 layers", head.layers);
            require((2..=4).contains(&head.layers), "head.layers", problem)?;
            for (key, size) in [("head.hidden", head.hidden), ("head.output", head.output)] {
                require((2..=65_536).contains(&size), key, format!("is {size}; it must lie between 2 and 65536"))?;
            }
        }
        if let Some(text) = &self.text {
            require(is_pairs, "text", "is given, but the data has no texts: name some with --pairs".into())?;
            let problem = format!("is {}; CLIP's vocabulary has {VOCABULARY} entries", text.vocabulary);
            require(text.vocabulary == VOCABULARY, "text.vocabulary", problem)?;
            let problem = format!("is {}; it must lie between 3 and {CONTEXT}", text.context);
            require((3..=CONTEXT).contains(&text.context), "text.context", problem)?;
            require((1..=64).contains(&text.layers), "text.layers", format!("is {}; 1 to 64", text.layers))?;
            let problem = format!("is {}; it must divide the width of {}", text.heads, text.width);
            let divides = text.width >= 1 && text.heads >= 1 && text.width.is_multiple_of(text.heads);
            require(divides, "text.heads", problem)?;
        }
        let name = self.method.name();
        let problem = match is_pairs {
            true => "encodes images alone: use clip-s, clip-xs or clip-vit-xs with image–text pairs",
            false => "encodes image–text pairs: name some with --pairs, or use a ResNet",
        };
        require(self.encoder.is_clip() == is_pairs, "encoder.name", problem.into())?;

        let rate = &self.learning_rate;
        let problem = format!("is {}; it must be a positive number", rate.base);
        require(rate.base > 0.0 && rate.base.is_finite(), "learning_rate.base", problem)?;
        let problem = format!("is {}; the run has {} epochs", rate.warmup_epochs, self.train.epochs);
        let fits = (0.0..=self.train.epochs as f64).contains(&rate.warmup_epochs);
        require(fits, "learning_rate.warmup_epochs", problem)?;
        if let Some(steps) = rate.warmup_steps {
            let total = self.train.epochs * (samples / batch);
            let problem = format!("is {steps}; the run has {total} steps");
            require(steps <= total, "learning_rate.warmup_steps", problem)?;
        }

        let augment = &self.augment;
        let views = augment.view_count();
        require(views >= 1, "augment.views", "has no crops".into())?;
        let large = augment.views[0].count;
        let problem = format!("has {views} crops of each image; image–text pairs take exactly 1");
        require(!is_pairs || views == 1, "augment.views", problem)?;
        let problem = format!("has {large} crop in its first group; positives need 2");
        require(is_pairs || large >= 2, "augment.views", problem)?;
        let problem = format!("has {views} crops of each image; {name} takes exactly 2 of one size");
        require(!method.is_two_view() || (views == 2 && large == 2), "augment.views", problem)?;
        match &augment.jigsaw {
            Some(jigsaw) => {
                require(method.needs_jigsaw(), "augment.jigsaw", format!("is given, but {name} has no use for it"))?;
                require(jigsaw.grid == 3, "augment.jigsaw.grid", format!("is {}; it must be 3", jigsaw.grid))?;
                let [low, high] = jigsaw.scale;
                let problem = format!("is {low}–{high}; it must lie within 0–1 and rise");
                require(0.0 < low && low <= high && high <= 1.0, "augment.jigsaw.scale", problem)?;
            }
            None => require(!method.needs_jigsaw(), "augment.jigsaw", format!("is missing; {name} needs it"))?,
        }
        if let Some(operations) = &augment.rand_augment {
            let problem = format!("is {}; it must lie between 0 and 10", operations.magnitude);
            require((0.0..=10.0).contains(&operations.magnitude), "augment.rand_augment.magnitude", problem)?;
            let problem = format!("is {}; at most 15", operations.count);
            require(operations.count <= 15, "augment.rand_augment.count", problem)?;
        }
        let falls = augment.views.is_sorted_by(|a, b| a.size > b.size);
        require(falls, "augment.views", "must list large crops first, each group smaller than the one before".into())?;
        require(views <= 100, "augment.views", format!("has {views} crops of each image; at most 100"))?;
        for group in &augment.views {
            let [low, high] = group.scale;
            let problem = format!("has scale {low}–{high}; it must lie within 0–1 and rise");
            require(0.0 < low && low <= high && high <= 1.0, "augment.views", problem)?;
            require(group.count >= 1, "augment.views", "has a group without crops".into())?;
            let problem = format!("has size {}; it must lie between 4 and 4096 pixels", group.size);
            require((4..=4096).contains(&group.size), "augment.views", problem)?;
        }
        let wrong = |(key, problem): (&str, String)| ConfigError::Value { key: format!("encoder.{key}"), problem };
        self.encoder.check(augment.views[0].size).map_err(wrong)?;
        let (jitter, blur) = (&augment.jitter, &augment.blur);
        for (key, p) in [
            ("augment.flip", augment.flip),
            ("augment.grey", augment.grey),
            ("augment.jitter.probability", jitter.probability),
            ("augment.blur.probability", blur.probability),
        ] {
            require((0.0..=1.0).contains(&p), key, format!("is {p}; a probability lies between 0 and 1"))?;
        }
        let positive_sigma = blur.sigma[0] > 0.0 && blur.sigma[0] <= blur.sigma[1];
        require(positive_sigma, "augment.blur.sigma", format!("is {:?}; it must be positive and rise", blur.sigma))?;
        let strengths = [jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue];
        let possible = strengths.iter().all(|s| (0.0..=10.0).contains(s));
        require(possible, "augment.jitter", "has a strength outside 0–10".into())?;
        let problem = format!("is {}; half of the circle of hues, 0.5, is the most", jitter.hue);
        require(jitter.hue <= 0.5, "augment.jitter.hue", problem)?;
        require(augment.mean.iter().all(|m| m.is_finite()), "augment.mean", "must be finite".into())?;
        let positive = augment.std.iter().all(|&s| s > 0.0 && s.is_finite());
        require(positive, "augment.std", "must be positive".into())?;

        match self.train.device {
            DeviceName::Wgpu if cfg!(not(feature = "wgpu")) => Err(ConfigError::Device("wgpu")),
            DeviceName::Cuda if cfg!(not(feature = "cuda")) => Err(ConfigError::Device("cuda")),
            _ => Ok(()),
        }
    }
}
