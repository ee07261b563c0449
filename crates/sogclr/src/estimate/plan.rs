//! What to train in the time there is: a few encoders and sizes are measured on the user's images, and the strongest that sees
//! them often enough is proposed, with the reason for each setting.

use super::Forecast;
use crate::config::{Overrides, RunConfig};
use crate::data::Dataset;
use crate::train::{TrainError, free_memory_gb, step_gb, too_large};
use std::time::{Duration, Instant};
use toml::Value;

/// An encoder and a size, measured.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its settings, resolved.
    pub config: RunConfig,
    /// What a run of them takes.
    pub forecast: Forecast,
    /// Memory of a step, in GB, at the least; `None` where that is not known.
    pub memory_gb: Option<f64>,
    /// Epochs that fit into the time.
    pub epochs: usize,
}

/// A setting and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// The key of the configuration.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// Why this one.
    pub why: String,
}

/// What fits into the time.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All that were measured, the strongest first.
    pub candidates: Vec<Candidate>,
    /// Which of them is proposed.
    pub chosen: usize,
    /// Its settings, with the epochs that fit.
    pub config: RunConfig,
    /// Seconds that it will take.
    pub seconds: f64,
    /// Each setting with its reason.
    pub reasons: Vec<Reason>,
}

/// Encoders and sizes for photographs and for small images, the strongest first. A size of 0 is the images' own.
const PHOTOS: [(&str, usize); 6] =
    [("resnet50", 224), ("resnet18", 224), ("resnet18", 160), ("resnet18", 128), ("resnet18", 96), ("resnet18", 64)];
const SMALL: [(&str, usize); 4] = [("resnet18", 0), ("resnet56", 0), ("resnet20", 0), ("resnet8", 0)];
/// Epochs after which more of them help less than a stronger encoder.
const ENOUGH: usize = 60;
/// And more than which nobody needs.
const MOST: usize = 800;
/// No further candidate is measured after this.
const PATIENCE: Duration = Duration::from_secs(40);
/// Share of the time that is given out, as estimates err.
const SAFE: f64 = 0.95;

impl Plan {
    /// Measures what `overrides` leaves open, and chooses for so many seconds. `measured` is told each candidate.
    pub fn make(
        data: &Dataset,
        overrides: &Overrides,
        seconds: f64,
        mut measured: impl FnMut(&Candidate),
    ) -> Result<Self, TrainError> {
        let (began, seconds) = (Instant::now(), SAFE * seconds);
        let mut candidates: Vec<Candidate> = Vec::new();
        // From the quickest, so that the slow ones are what is left out.
        for config in possible(data, overrides)?.into_iter().rev() {
            let too_slow = candidates.last().is_some_and(|last| last.epochs < ENOUGH / 4);
            if !candidates.is_empty() && (too_slow || began.elapsed() > PATIENCE) {
                break;
            }
            let forecast = Forecast::measure(&config, &data.train)?;
            let epochs = forecast.epochs_in(seconds).min(MOST);
            let candidate = Candidate { memory_gb: step_gb(&config, config.train.batch), config, forecast, epochs };
            measured(&candidate);
            candidates.push(candidate);
        }
        candidates.reverse();
        let chosen = candidates.iter().position(|it| it.epochs >= ENOUGH).unwrap_or(candidates.len() - 1);
        let best = &candidates[chosen];
        let mut settings = chosen_of(overrides, best);
        settings.lay("train.epochs", Value::Integer(best.epochs as i64));
        let config = RunConfig::resolve(&data.describe(), &settings)?;
        let seconds = best.forecast.seconds() / best.forecast.epochs as f64 * best.epochs as f64;
        let reasons = reasons(&config, best, data.train.len());
        Ok(Self { chosen, config, seconds, reasons, candidates })
    }
}

/// `overrides` with what was chosen for the candidate.
fn chosen_of(overrides: &Overrides, candidate: &Candidate) -> Overrides {
    let mut all = overrides.clone();
    let config = &candidate.config;
    all.lay("encoder.name", Value::String(config.encoder.spec().name().to_string()));
    if !overrides.has("augment.views") {
        all.lay("data.image_size", Value::Integer(config.augment.views[0].size as i64));
    }
    all.lay("train.batch", Value::Integer(config.train.batch as i64));
    all
}

/// What may be trained, the strongest first; what the user has chosen stays.
fn possible(data: &Dataset, overrides: &Overrides) -> Result<Vec<RunConfig>, TrainError> {
    let described = data.describe();
    let table: &[(&str, usize)] = if described.size > 64 { &PHOTOS } else { &SMALL };
    let (own_encoder, own_size) =
        (overrides.has("encoder.name"), overrides.has("data.image_size") || overrides.has("augment.views"));
    let mut found: Vec<RunConfig> = Vec::new();
    for &(encoder, size) in table {
        let size = if size == 0 { described.size } else { size };
        if !own_size && size > described.size {
            continue;
        }
        let mut settings = overrides.clone();
        if !own_encoder {
            settings.lay("encoder.name", Value::String(encoder.into()));
        }
        if !own_size {
            settings.lay("data.image_size", Value::Integer(size as i64));
        }
        let mut config = RunConfig::resolve(&described, &settings)?;
        if !overrides.has("train.batch") {
            settings.lay("train.batch", Value::Integer(fitting_batch(&config, data.train.len()) as i64));
            config = RunConfig::resolve(&described, &settings)?;
        }
        if !found.contains(&config) {
            found.push(config);
        }
    }
    Ok(found)
}

/// The usual batch, halved until an epoch has eight steps and a step fits into the memory.
fn fitting_batch(config: &RunConfig, samples: usize) -> usize {
    let free = free_memory_gb();
    let mut config = config.clone();
    let is_too_large = |config: &RunConfig| {
        samples / config.train.batch < 8 || free.is_some_and(|free| too_large(config, 0.7 * free).is_some())
    };
    while config.train.batch > 16 && is_too_large(&config) {
        config.train.batch = (config.train.batch / 2).max(16);
    }
    config.train.batch
}

fn reasons(config: &RunConfig, chosen: &Candidate, samples: usize) -> Vec<Reason> {
    let (batch, epochs) = (config.train.batch, config.train.epochs);
    let reason = |key, value: String, why: String| Reason { key, value, why };
    let enough = match epochs >= ENOUGH {
        true => format!("the strongest measured that sees every image {ENOUGH} times or more"),
        false => format!("the quickest: none sees every image {ENOUGH} times in this time, so expect less"),
    };
    let memory = chosen.memory_gb.map_or(String::new(), |gb| format!(", in {gb:.1} GB or more of memory"));
    let size = config.augment.views[0].size;
    let method = serde_json::to_value(&config.method).unwrap_or_default();
    let mut all = vec![
        reason("encoder.name", config.encoder.spec().name().to_string(), enough),
        reason("data.image_size", size.to_string(), "an image costs with the square of its side".into()),
        reason("train.batch", batch.to_string(), format!("{} steps an epoch{memory}", samples / batch)),
        reason("train.epochs", epochs.to_string(), format!("at {:.0} images/s", chosen.forecast.speed())),
        reason(
            "learning_rate",
            format!("{:.3}", config.learning_rate.peak(batch)),
            "the paper's rule for this batch, with a warm-up of a tenth at most".into(),
        ),
    ];
    if let Some(gamma) = method.get("gamma") {
        let why = format!("u of an image is renewed {epochs} times in the run");
        let value = gamma.get("value").or(gamma.get("kind")).map_or(String::new(), ToString::to_string);
        all.push(reason("method.gamma", value.trim_matches('"').to_owned(), why));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(settings: &[&str], seconds: f64) -> Plan {
        let mut overrides = Overrides::default();
        let small = ["data.limit=64", "data.image_size=8", "train.batch=16"];
        small.iter().chain(settings).for_each(|setting| overrides.set(setting).unwrap());
        let data = Dataset::open(&overrides.data().unwrap().0, 0).unwrap();
        Plan::make(&data, &overrides, seconds, |_| {}).unwrap()
    }

    #[test]
    fn the_epochs_fill_the_time_and_what_is_given_stays() {
        let found = plan(&["encoder.name=resnet8", "encoder.width=0.25"], 1e9);
        assert_eq!((found.candidates.len(), found.config.train.epochs, found.config.train.batch), (1, MOST, 16));
        let found = plan(&["encoder.name=resnet8", "encoder.width=0.25"], 0.0);
        assert_eq!(found.config.train.epochs, 1);
        assert!(found.reasons[0].why.contains("expect less"), "{:?}", found.reasons);
        assert_eq!(found.config.encoder.spec().name().to_string(), "resnet8");
    }
}
