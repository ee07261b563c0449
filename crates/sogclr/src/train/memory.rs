//! Whether a step fits into this machine's memory: told before training, as the system would end the program without a word.

use crate::config::RunConfig;

/// GB that a step takes on the CPU, at the least; `None` where that is not known.
pub fn step_gb(config: &RunConfig, images: usize) -> Option<f64> {
    if !config.train.device.is_cpu() {
        return None;
    }
    let (encoder, channels, precision) = (config.encoder.spec(), config.augment.channels(), config.train.precision);
    let of_size = |size: usize| encoder.kept_bytes(size, channels, precision);
    let bytes: usize = config.augment.views.iter().map(|group| group.count * of_size(group.size)).sum();
    Some(1e-9 * (images * bytes) as f64)
}

/// What to change if a step of this run cannot fit into `free_gb` of memory.
pub fn too_large(config: &RunConfig, free_gb: f64) -> Option<String> {
    let chunk = config.train.micro_batch.unwrap_or(config.train.batch);
    let needed = step_gb(config, chunk).filter(|needed| *needed > free_gb)?;
    let halves = std::iter::successors(Some(chunk), |images| images.is_multiple_of(2).then_some(images / 2));
    let fits = |images: &usize| *images >= 2 && step_gb(config, *images).is_some_and(|gb| gb < 0.5 * free_gb);
    let advice = match halves.into_iter().find(fits) {
        Some(images) => format!("set train.micro_batch to {images}, or lower train.batch"),
        None => "choose a smaller encoder.name, data.image_size or train.batch".into(),
    };
    Some(format!(
        "a step of {chunk} images needs at least {needed:.0} GB of memory, {free_gb:.0} GB are free: {advice}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use crate::encoder::Precision;

    #[test]
    fn a_batch_that_cannot_fit_is_named_with_a_micro_batch_that_does() {
        let mut overrides = Overrides::default();
        for setting in ["encoder.name=resnet50", "data.image_size=224", "train.batch=256"] {
            overrides.set(setting).unwrap();
        }
        let (mut config, _) = RunConfig::open(&overrides).unwrap();
        let problem = too_large(&config, 24.0).unwrap();
        assert!(problem.contains("at least 39 GB") && problem.contains("train.micro_batch to 64"), "{problem}");
        assert_eq!(too_large(&config, 64.0), None);
        config.train.precision = Precision::Bf16;
        assert!(too_large(&config, 18.0).unwrap().contains("at least 19 GB"));
        assert_eq!(too_large(&config, 24.0), None);
        config.train.precision = Precision::F32;
        config.train.micro_batch = Some(64);
        assert_eq!(too_large(&config, 24.0), None);
    }
}
