//! Defaults that fit the data, and the user's settings over them. Opens nothing: what it needs to know of the data is a
//! [`Description`].

use super::merge::lay_over;
use super::modest::Modest;
use super::nearest::{nearest, path_of};
use super::{ConfigError, DeviceName, Overrides, RunConfig, TrainConfig};
use crate::augment::{AugmentConfig, Keep, Preset, parse_views};
use crate::check::Problem;
use crate::data::{ChannelStatistics, DataConfig, Description, Modality};
use crate::encoder::{EncoderConfig, HeadConfig, Precision, TextConfig};
use crate::loss::Gamma;
use crate::method::{MethodConfig, Recipe, Setting};
use crate::optim::{LearningRate, OptimizerConfig};
use serde::de::DeserializeOwned;
use std::mem::discriminant;
use toml::{Table, Value};

/// Counts and sizes of crops.
type Views = Vec<(usize, usize)>;

/// The configuration of a run on such data.
pub(super) fn resolve(data: &Description, overrides: &Overrides) -> Result<RunConfig, ConfigError> {
    let (data_config, seed) = overrides.data()?;
    let views = overrides.string("augment.views").map(parse_views).transpose();
    let views = views.map_err(|text| Problem::new("augment.views", text))?;
    let modest = Modest::of(data, overrides, &data_config);
    let size = modest.map_or_else(|| crop_size(data, overrides, &data_config, views.as_ref()), |modest| modest.size);
    let given_preset = overrides.get("augment.preset").map(|value| parse("augment.preset", value)).transpose()?;
    let epochs = modest.map_or(100, |modest| modest.epochs);
    let setting = setting(data, overrides, size, given_preset, epochs);
    let method = method(overrides, &setting)?;
    let encoder = encoder(data.modality, overrides, size, modest)?;
    let preset = given_preset.or(method.spec().preset(&setting)).unwrap_or_else(|| usual_preset(data, size));
    let mut augment = AugmentConfig::for_channels(preset, size, data.channels);
    if let Some(views) = &views {
        augment.set_views(views);
    }
    let mut recipe = recipe(overrides, &setting, &method, &encoder, augment)?;
    for keep in kept(overrides)? {
        recipe.augment.keep(keep);
    }
    if let Some(ChannelStatistics { mean, std }) = &data.measured {
        recipe.augment = recipe.augment.without_colours();
        (recipe.augment.mean, recipe.augment.std) = (mean.clone(), std.clone());
    }
    let text = (data.modality == Modality::Pairs).then(|| text(&encoder));
    let base = RunConfig {
        seed,
        data: data_config.clone(),
        train: TrainConfig::defaults(default_batch(data, size), setting.epochs),
        head: text.is_none().then_some(recipe.head),
        text,
        method,
        encoder,
        learning_rate: recipe.learning_rate,
        optimizer: recipe.optimizer,
        augment: recipe.augment,
    };
    let user = expanded(overrides, &base.method, setting.epochs, views.is_some());
    let mut merged = table(&base);
    lay_over(&mut merged, &user);
    let mut config: RunConfig = parse_given("", Value::Table(merged), &user)?;
    config.data =
        DataConfig { eval_size: eval_size(data, &data_config, &config, modest), pixels: data.pixels(), ..data_config };
    if let MethodConfig::External(_) = base.method {
        config.method = base.method;
    }
    if let Some(path) = &mut config.train.init {
        *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
    }
    Ok(config)
}

/// The side of the large crops: the user's, or what suits the images.
fn crop_size(data: &Description, overrides: &Overrides, data_config: &DataConfig, views: Option<&Views>) -> usize {
    let views_size = match views {
        Some(views) => Some(views[0].1),
        None => overrides.get("augment.views").as_ref().and_then(largest_size),
    };
    views_size.or(data_config.image_size).unwrap_or(match data.modality {
        // What CLIP's ResNets take.
        Modality::Pairs => data.size.next_multiple_of(32).max(64),
        Modality::Images => data.size,
    })
}

/// The side of images at evaluation: the user's, or the images' own; `None` where all agree with the crops.
fn eval_size(data: &Description, given: &DataConfig, config: &RunConfig, modest: Option<Modest>) -> Option<usize> {
    let crop = config.augment.views.first()?.size;
    let usual = match given.image_size {
        _ if config.encoder.spec().has_one_size() || modest.is_some() => crop,
        Some(size) => size,
        None if data.modality == Modality::Pairs => crop,
        None => data.size,
    };
    given.eval_size.or(Some(usual)).filter(|&size| (size, usual) != (crop, crop))
}

/// Activations of large images: a batch of 256 would take tens of GB.
fn default_batch(data: &Description, size: usize) -> usize {
    let usual = if size <= 64 { 256 } else { 64 };
    usual.min((data.samples / 2).max(2))
}

/// What the defaults of a method depend on.
fn setting(
    data: &Description,
    overrides: &Overrides,
    size: usize,
    given_preset: Option<Preset>,
    usual_epochs: usize,
) -> Setting {
    let is_grey = data.channels == 1 && data.measured.is_none();
    let is_small = match given_preset {
        Some(Preset::Cifar | Preset::Grey) => true,
        Some(Preset::Imagenet) => false,
        _ => is_grey || size <= 64,
    };
    let integer = |key: &str| overrides.get(key).and_then(|value| value.as_integer());
    let batch = integer("train.batch").map_or(default_batch(data, size), |batch| batch.max(0) as usize);
    let epochs = integer("train.epochs").map_or(usual_epochs, |epochs| epochs.clamp(0, 1_000_000) as usize);
    Setting { is_small, is_grey, modality: data.modality, samples: data.samples, batch, epochs }
}

fn method(overrides: &Overrides, setting: &Setting) -> Result<MethodConfig, Problem> {
    if let Some(method) = overrides.external() {
        return Ok(MethodConfig::External(method.clone()));
    }
    let name = overrides.string("method.kind").unwrap_or("sogclr");
    MethodConfig::named(name, setting).map_err(|problem| Problem::new("method.kind", format!("is {name:?}; {problem}")))
}

/// The usual augmentation of such images.
fn usual_preset(data: &Description, size: usize) -> Preset {
    match data.channels {
        1 if data.measured.is_none() => Preset::Grey,
        _ if size <= 64 => Preset::Cifar,
        _ => Preset::Imagenet,
    }
}

/// The encoder with the user's settings, on which the head depends.
fn encoder(
    modality: Modality,
    overrides: &Overrides,
    size: usize,
    modest: Option<Modest>,
) -> Result<EncoderConfig, ConfigError> {
    let usual = match modality {
        Modality::Pairs if size < 160 => "clip-xs",
        Modality::Pairs => "clip-s",
        _ if modest.is_some() => Modest::ENCODER,
        Modality::Images if size <= 40 => "resnet20",
        Modality::Images if size <= 64 => "resnet18",
        Modality::Images => "resnet50",
    };
    let name = overrides.get("encoder.name").map_or(Ok(usual.to_owned()), |value| parse("encoder.name", value))?;
    let mut own = table(&EncoderConfig::named(&name, size)?);
    if let Some(Value::Table(given)) = overrides.get("encoder") {
        lay_over(&mut own, &given);
    }
    parse("encoder", Value::Table(own))
}

/// What the augmentation must not destroy: words, parted by commas.
fn kept(overrides: &Overrides) -> Result<Vec<Keep>, Problem> {
    let text = overrides.string("augment.keep").unwrap_or_default();
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| word.parse().map_err(|problem: String| Problem::new("augment.keep", problem))).collect()
}

/// The text encoder that goes with an image encoder.
fn text(encoder: &EncoderConfig) -> TextConfig {
    let spec = encoder.spec();
    let output = (!spec.is_embedding()).then(|| spec.feature_dim().min(512));
    TextConfig { output, ..spec.text() }
}

/// Augmentation, head, optimiser and learning rate as the method's authors have them.
fn recipe(
    overrides: &Overrides,
    setting: &Setting,
    method: &MethodConfig,
    encoder: &EncoderConfig,
    augment: AugmentConfig,
) -> Result<Recipe, Problem> {
    let kind = overrides.string("optimizer.kind");
    let (optimizer, learning_rate) = OptimizerConfig::named(kind.unwrap_or("lars"), setting.is_small)?;
    let learning_rate = LearningRate { warmup_epochs: (setting.epochs as f64 / 10.0).min(10.0), ..learning_rate };
    let mut recipe = Recipe {
        augment,
        head: HeadConfig::for_features(encoder.feature_dim()),
        optimizer: optimizer.clone(),
        learning_rate: learning_rate.clone(),
    };
    method.spec().adjust(setting, &mut recipe);
    if setting.modality == Modality::Pairs {
        // The paper's 1000 steps, fewer in a short run.
        let total = setting.epochs * (setting.samples / setting.batch.max(1));
        recipe.learning_rate.warmup_epochs = 0.0;
        recipe.learning_rate.warmup_steps = Some((total / 10).min(1000));
    }
    // The user's choice of another optimiser comes with that one's learning rate.
    if kind.is_some() && discriminant(&recipe.optimizer) != discriminant(&optimizer) {
        (recipe.optimizer, recipe.learning_rate) = (optimizer, learning_rate);
    }
    Ok(recipe)
}

/// The user's settings with what they may write in short.
fn expanded(overrides: &Overrides, method: &MethodConfig, epochs: usize, views_are_text: bool) -> Table {
    let mut user = overrides.table().clone();
    if let Some(Value::Table(given)) = user.get_mut("method") {
        // `sogclr` is also the name of its form for pairs.
        if !matches!(method, MethodConfig::External(_)) {
            given.insert("kind".into(), Value::String(method.name().into()));
        }
        if let Some(gamma) = given.get_mut("gamma") {
            Gamma::expand(gamma, epochs);
        }
    }
    if let Some(Value::Table(given)) = user.get_mut("augment") {
        given.remove("keep");
        if views_are_text {
            given.remove("views");
        }
    }
    user
}

fn largest_size(views: &Value) -> Option<usize> {
    views.as_array()?.iter().filter_map(|group| group.get("size")?.as_integer()).max().map(|size| size as usize)
}

impl TrainConfig {
    /// A run of `epochs` on the CPU.
    fn defaults(batch: usize, epochs: usize) -> Self {
        Self {
            batch,
            micro_batch: None,
            epochs,
            device: DeviceName::Cpu,
            precision: Precision::F32,
            init: None,
            checkpoint_minutes: 10.0,
            keep_every: None,
        }
    }
}

pub(super) fn table(value: &impl serde::Serialize) -> Table {
    Table::try_from(value).expect("a configuration is plain data")
}

pub(super) fn parse<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, ConfigError> {
    let given = value.as_table().cloned().unwrap_or_default();
    parse_given(key, value, &given)
}

/// The same where `value` holds defaults beside what was given.
fn parse_given<T: DeserializeOwned>(key: &str, value: Value, given: &Table) -> Result<T, ConfigError> {
    value.try_into().map_err(|error: toml::de::Error| {
        let unknown = error.message().strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
        if let Some(field) = unknown {
            let path = path_of(given, field).unwrap_or_else(|| field.to_owned());
            let given = if key.is_empty() { path } else { format!("{key}.{path}") };
            return ConfigError::UnknownKey { nearest: nearest(&given), given };
        }
        let message = error.to_string().trim().replace('\n', " ");
        ConfigError::Key(if key.is_empty() { message } else { format!("{key}: {message}") })
    })
}
