//! Defaults that fit the data: image size, augmentation, encoder, method and optimiser.

use super::merge::lay_over;
use super::{ConfigError, DeviceName, Overrides, RunConfig, TrainConfig};
use crate::augment::{AugmentConfig, Preset, parse_views};
use crate::data::{DataConfig, Dataset, pairs};
use crate::encoder::{EncoderConfig, EncoderName, HeadConfig};
use crate::method::{MethodConfig, Setting, Surroundings};
use crate::optim::{AdamW, Lars, LearningRate, OptimizerConfig, PaperMomentum, Scaling, Sgd};
use serde::de::DeserializeOwned;
use std::mem::discriminant;
use std::path::Path;
use toml::{Table, Value};

/// Opens the data that `overrides` names and completes the configuration.
pub(super) fn resolve(overrides: &Overrides) -> Result<(RunConfig, Dataset), ConfigError> {
    let mut user = overrides.0.clone();
    let seed = user.get("seed").map_or(Ok(0), |value| parse("seed", value.clone()))?;
    let mut data_table = table(&DataConfig::default());
    if let Some(Value::Table(given)) = user.get("data") {
        lay_over(&mut data_table, given);
    }
    let mut data_config: DataConfig = parse("data", Value::Table(data_table))?;
    // Paths must still hold when the run is resumed from elsewhere.
    check_sources(&data_config)?;
    let DataConfig { path, test, classes, class_names, pairs, images, .. } = &mut data_config;
    for path in [path, test, classes, class_names, pairs, images].into_iter().flatten() {
        if path.as_path() != Path::new(pairs::EMOJI) {
            *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
        }
    }
    // `views` is a list of groups, or a text such as 4x160+2x96.
    let text = overrides.string("augment.views");
    let views = text.map(parse_views).transpose().map_err(|problem| value_error("augment.views", problem))?;
    let data = Dataset::open(&data_config, seed)?;

    let views_size = match &views {
        Some(views) => Some(views[0].1),
        None => user.get("augment").and_then(|a| a.get("views")).and_then(largest_size),
    };
    let has_text = data.train.has_captions();
    let size = data_config.image_size.or(views_size).unwrap_or_else(|| match has_text {
        true => default_size(&data).next_multiple_of(32).max(64),
        false => default_size(&data),
    });
    if let (Some(image_size), Some(views_size)) = (data_config.image_size, views_size) {
        let problem = format!("is {image_size}, but the large views have {views_size} pixels: leave one of them out");
        if image_size != views_size {
            return Err(value_error("data.image_size", problem));
        }
    }
    let given_preset = match user.get("augment").and_then(|a| a.get("preset")) {
        Some(value) => Some(parse("augment.preset", value.clone())?),
        None => None,
    };
    let is_small = match given_preset {
        Some(Preset::Cifar | Preset::Grey) => true,
        Some(Preset::Imagenet) => false,
        _ => data.is_grey || size <= 64,
    };
    let integer = |key: &str| overrides.0.get("train").and_then(|train| train.get(key)).and_then(Value::as_integer);
    // Activations of large images: a batch of 256 would take tens of GB.
    let usual_batch = if size <= 64 { 256 } else { 64 };
    let default_batch = usual_batch.min((data.train.len() / 2).max(2));
    let batch = integer("batch").map_or(default_batch, |batch| batch.max(0) as usize);
    let epochs = integer("epochs").map_or(100, |epochs| epochs.clamp(0, 1_000_000) as usize);
    let samples = data.train.len();
    let setting = Setting { is_small, is_grey: data.is_grey, has_text, samples, batch, epochs };

    let method_name = overrides.string("method.kind").unwrap_or("sogclr");
    let method = MethodConfig::named(method_name, &setting)
        .map_err(|problem| value_error("method.kind", format!("is {method_name:?}; {problem}")))?;
    if let Some(Value::Table(given)) = user.get_mut("method") {
        // `sogclr` is also the name of its form for pairs.
        given.insert("kind".into(), Value::String(method.name().into()));
        // `gamma = 0.9` is a constant.
        if let Some(value) =
            given.get("gamma").and_then(|gamma| gamma.as_float().or(gamma.as_integer().map(|v| v as f64)))
        {
            let constant = [("kind", Value::String("constant".into())), ("value", Value::Float(value))];
            given.insert(
                "gamma".into(),
                Value::Table(constant.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()),
            );
        }
        // As FastCLIP has it: γ falls over half of the run.
        if let Some(Value::Table(gamma)) = given.get_mut("gamma")
            && gamma.get("kind").and_then(Value::as_str) == Some("cosine")
        {
            gamma.entry("min").or_insert(Value::Float(0.2));
            gamma.entry("epochs").or_insert(Value::Integer((epochs / 2).max(1) as i64));
        }
    }
    let usual = if data.is_grey {
        Preset::Grey
    } else if size <= 64 {
        Preset::Cifar
    } else {
        Preset::Imagenet
    };
    let preset = given_preset.or(method.spec().preset(&setting)).unwrap_or(usual);
    let name = match user.get("encoder").and_then(|e| e.get("name")) {
        Some(value) => parse("encoder.name", value.clone())?,
        None if has_text && size < 160 => EncoderName::ClipXs,
        None if has_text => EncoderName::ClipS,
        None if size <= 40 => EncoderName::Resnet20,
        None if size <= 64 => EncoderName::Resnet18,
        None => EncoderName::Resnet50,
    };
    let mut encoder_table = table(&EncoderConfig::for_size(name, size));
    if let Some(Value::Table(given)) = user.get("encoder") {
        lay_over(&mut encoder_table, given);
    }
    let encoder: EncoderConfig = parse("encoder", Value::Table(encoder_table))?;

    let kind = overrides.string("optimizer.kind");
    let (optimizer, learning_rate) = optimizer(kind, is_small)?;
    let head = HeadConfig::for_features(encoder.feature_dim());
    let mut augment = AugmentConfig::preset(preset, size);
    if let (Some(views), Some(Value::Table(given))) = (&views, user.get_mut("augment")) {
        augment.set_views(views);
        given.remove("views");
    }
    let learning_rate = LearningRate { warmup_epochs: (epochs as f64 / 10.0).min(10.0), ..learning_rate };
    let mut around = Surroundings { augment, head, optimizer: optimizer.clone(), learning_rate: learning_rate.clone() };
    method.spec().suit(&setting, &mut around);
    if has_text {
        // The paper's 1000 steps, fewer in a short run.
        let total = epochs * (samples / batch.max(1));
        around.learning_rate.warmup_epochs = 0.0;
        around.learning_rate.warmup_steps = Some((total / 10).min(1000));
    }
    // The user's choice of another optimiser comes with that one's learning rate.
    if kind.is_some() && discriminant(&around.optimizer) != discriminant(&optimizer) {
        (around.optimizer, around.learning_rate) = (optimizer, learning_rate);
    }
    let base = RunConfig {
        seed,
        data: data_config,
        train: TrainConfig {
            batch: default_batch,
            micro_batch: None,
            epochs,
            device: DeviceName::Cpu,
            init: None,
            checkpoint_minutes: 10.0,
            keep_every: None,
        },
        method,
        head: (!has_text).then_some(around.head),
        text: has_text.then(|| encoder.text()),
        encoder,
        learning_rate: around.learning_rate,
        optimizer: around.optimizer,
        augment: around.augment,
    };
    let data_config = base.data.clone();
    let mut merged = table(&base);
    lay_over(&mut merged, &user);
    let mut config: RunConfig = parse("", Value::Table(merged))?;
    config.data = data_config;
    if let Some(path) = &mut config.train.init {
        *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
    }
    Ok((config, data))
}

/// The optimiser's defaults and the learning rate that suits it.
fn optimizer(kind: Option<&str>, small: bool) -> Result<(OptimizerConfig, LearningRate), ConfigError> {
    let rate = |base, scaling| LearningRate { base, scaling, warmup_epochs: 0.0, warmup_steps: None };
    let weight_decay = if small { 1e-4 } else { 1e-6 };
    Ok(match kind.unwrap_or("lars") {
        "lars" => {
            // 0.075·√B is the paper's; 0.2·√B its authors' for SimCLR on CIFAR.
            let base = if small { 0.2 } else { 0.075 };
            let lars = Lars { momentum: 0.9, weight_decay, trust: 0.001 };
            (OptimizerConfig::Lars(lars), rate(base, Scaling::Sqrt))
        }
        "sgd" => {
            let sgd = Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
            (OptimizerConfig::Sgd(sgd), rate(0.3, Scaling::Linear))
        }
        "adamw" => {
            let adamw = AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 1e-2 };
            (OptimizerConfig::Adamw(adamw), rate(1e-3, Scaling::None))
        }
        "momentum" => (OptimizerConfig::Momentum(PaperMomentum { beta: 0.1 }), rate(3.0, Scaling::Linear)),
        other => {
            let problem = format!("is {other:?}; known optimisers are lars, sgd, adamw, momentum");
            return Err(value_error("optimizer.kind", problem));
        }
    })
}

/// Images alone, pairs, or labelled images with a template: not several of them.
fn check_sources(data: &DataConfig) -> Result<(), ConfigError> {
    let problem = match data {
        DataConfig { pairs: Some(_), path: Some(_), .. } => "is given beside data.path: name one of them",
        DataConfig { pairs: None, images: Some(_), .. } => {
            return Err(value_error(
                "data.images",
                "is given without data.pairs: name the captions with --pairs".into(),
            ));
        }
        DataConfig { template: None, class_names: Some(_), .. } => {
            let problem =
                "is given without data.template: say where the name belongs, --template \"a photo of [CLASS]\"";
            return Err(value_error("data.class_names", problem.into()));
        }
        DataConfig { pairs: Some(_), template: Some(_), .. } => "has captions of its own: leave data.template out",
        DataConfig { pairs: Some(_), classes: Some(_), .. } => "has no classes: leave data.classes out",
        DataConfig { template: Some(text), .. } if !text.contains("[CLASS]") => {
            return Err(value_error("data.template", format!("is {text:?}; write [CLASS] where the class belongs")));
        }
        _ => return Ok(()),
    };
    Err(value_error("data.pairs", problem.into()))
}

/// The side of a crop: the images' own where they are small, 224 at most.
fn default_size(data: &Dataset) -> usize {
    if let Some(size) = data.native_size {
        return size.clamp(8, 224);
    }
    // Spread over the classes; the median, as a few thumbnails say nothing about the rest.
    let count = data.train.len().min(64);
    let mut sides = Vec::with_capacity(count);
    for place in 0..count {
        // A broken image is reported, with all others, by the check before training.
        if let Ok(image) = data.train.image(place * data.train.len() / count) {
            sides.push(image.height.min(image.width));
        }
    }
    sides.sort();
    let usual = sides.get(sides.len().saturating_sub(1) / 2).copied().unwrap_or(224);
    [224, 160, 128, 96, 64].into_iter().find(|&size| size <= usual).unwrap_or(usual.max(8))
}

fn largest_size(views: &Value) -> Option<usize> {
    views.as_array()?.iter().filter_map(|group| group.get("size")?.as_integer()).max().map(|size| size as usize)
}

fn table(value: &impl serde::Serialize) -> Table {
    Table::try_from(value).expect("a configuration is plain data")
}

fn parse<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, ConfigError> {
    value.try_into().map_err(|error: toml::de::Error| {
        let message = error.to_string().trim().replace('\n', " ");
        ConfigError::Key(if key.is_empty() { message } else { format!("{key}: {message}") })
    })
}

fn value_error(key: &str, problem: String) -> ConfigError {
    ConfigError::Value { key: key.into(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataError, Image, Source, Split};
    use std::sync::Arc;

    /// Images of these heights and twice the width; 0 is a broken one.
    struct Heights(Vec<usize>);

    impl Source for Heights {
        fn count(&self) -> usize {
            self.0.len()
        }

        fn image(&self, index: usize) -> Result<Image, DataError> {
            match self.0[index] {
                0 => Err(DataError::Decode { name: self.name(index), cause: "broken".into() }),
                height => Ok(Image { height, width: 2 * height, channels: 3, data: vec![0; 6 * height * height] }),
            }
        }

        fn name(&self, index: usize) -> String {
            index.to_string()
        }

        fn check(&self, _: usize) -> Result<(blake3::Hash, u64), DataError> {
            unreachable!("only decoded")
        }

        fn stamp(&self, _: usize) -> Option<(u64, u128)> {
            None
        }
    }

    fn size(heights: Vec<usize>) -> usize {
        let train = Split::new(Arc::new(Heights(heights)), None);
        let (title, classes, problems) = (String::new(), Vec::new(), Vec::new());
        default_size(&Dataset { title, train, test: None, classes, native_size: None, is_grey: false, problems })
    }

    #[test]
    fn crops_follow_the_usual_image() {
        // One thumbnail, then a whole class of them, in front.
        assert_eq!(size([vec![16], vec![130; 40]].concat()), 128);
        assert_eq!(size([vec![16; 30], vec![130; 400]].concat()), 128);
        assert_eq!(size([vec![130; 30], vec![16; 400]].concat()), 16);
        // The lower of two in the middle, broken ones aside.
        assert_eq!(size(vec![0, 300, 20, 0]), 20);
        assert_eq!(size(vec![40; 3]), 40);
        assert_eq!((size(vec![4]), size(vec![300; 2]), size(vec![0]), size(vec![])), (8, 224, 224, 224));
    }
}
