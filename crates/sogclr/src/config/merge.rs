//! What the user gave, as one TOML table: recipe file first, then `--set key=value` and flags on top.

use super::resolve::{parse, table};
use super::{ConfigError, DeviceName};
use crate::augment::AugmentConfig;
use crate::data::DataConfig;
use crate::encoder::{EncoderConfig, HeadConfig};
use crate::method::{External, MethodConfig};
use crate::optim::{LearningRate, OptimizerConfig};
use crate::storage::read_regular;
use serde::Serialize;
use std::path::Path;
use toml::{Table, Value};

/// Parts of a dotted key, at most; no key has half as many.
const DEEPEST: usize = 16;

/// What the user gave, not yet checked against the types. From Rust it is built with the types themselves:
///
/// ```
/// use sogclr::config::Overrides;
/// use sogclr::method::SimclrConfig;
/// use sogclr::optim::{LearningRate, Scaling, Sgd};
///
/// let settings = Overrides::default()
///     .batch(64)
///     .epochs(10)
///     .method(SimclrConfig { temperature: 0.2 })
///     .optimizer(Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-4 })
///     .learning_rate(LearningRate::new(0.3, Scaling::Linear));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    table: Table,
    external: Option<External>,
}

/// Settings by their types; what is not set has defaults that fit the data.
impl Overrides {
    /// Images in each step.
    pub fn batch(self, images: usize) -> Self {
        self.with("train.batch", images as i64)
    }

    /// Passes over the data.
    pub fn epochs(self, epochs: usize) -> Self {
        self.with("train.epochs", epochs as i64)
    }

    /// Seed of every random choice, below 2⁶³.
    pub fn seed(self, seed: u64) -> Self {
        self.with("seed", seed as i64)
    }

    /// Side of the crops in pixels.
    pub fn image_size(self, pixels: usize) -> Self {
        self.with("data.image_size", pixels as i64)
    }

    /// Where to compute.
    pub fn device(self, device: DeviceName) -> Self {
        self.with_table("train.device", &device)
    }

    /// Which images to use.
    pub fn images(self, data: &DataConfig) -> Self {
        // Settings that leave it out are those of an old run.
        let given = self.with_table("data", data).with("data.ignore_orientation", data.ignore_orientation);
        given.with_table("data.pixels", &data.pixels)
    }

    /// The method and its hyper-parameters; one of another program from [`MethodConfig::external`].
    pub fn method(mut self, method: impl Into<MethodConfig>) -> Self {
        let method = method.into();
        self.external = match &method {
            MethodConfig::External(external) => Some(external.clone()),
            _ => None,
        };
        self.with_table("method", &method)
    }

    /// The network.
    pub fn encoder(self, encoder: impl Into<EncoderConfig>) -> Self {
        self.with_table("encoder", &encoder.into())
    }

    /// The projection head.
    pub fn head(self, head: &HeadConfig) -> Self {
        self.with_table("head", head)
    }

    /// How gradients become updates.
    pub fn optimizer(self, optimizer: impl Into<OptimizerConfig>) -> Self {
        self.with_table("optimizer", &optimizer.into())
    }

    /// How fast.
    pub fn learning_rate(self, rate: LearningRate) -> Self {
        self.with_table("learning_rate", &rate)
    }

    /// How views are made.
    pub fn augment(self, augment: &AugmentConfig) -> Self {
        self.with_table("augment", augment)
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.lay(key, value.into());
        self
    }

    /// A whole value replaces what was there.
    fn with_table(mut self, key: &str, value: &impl Serialize) -> Self {
        set_key(&mut self.table, key, Value::try_from(value).expect("a configuration is plain data"));
        self
    }
}

impl Overrides {
    /// Which images to use, with absolute paths, and the seed that draws a share of them.
    pub fn data(&self) -> Result<(DataConfig, u64), ConfigError> {
        let seed = self.get("seed").map_or(Ok(0), |value| parse("seed", value))?;
        let mut all = table(&DataConfig::default());
        if let Some(Value::Table(given)) = self.get("data") {
            lay_over(&mut all, &given);
        }
        let data: DataConfig = parse("data", Value::Table(all))?;
        data.check()?;
        Ok((data.absolute(), seed))
    }

    /// The method of another program.
    pub(super) fn external(&self) -> Option<&External> {
        self.external.as_ref()
    }

    /// Everything as TOML.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// A recipe file, or a run folder's `config.toml`.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
        let text = String::from_utf8(read_regular(path).map_err(unreadable)?)
            .map_err(|_| unreadable(std::io::Error::other("it is not a text in UTF-8")))?;
        let table = text.parse::<Table>().map_err(|error| ConfigError::Syntax {
            origin: path.display().to_string(),
            message: error.to_string().trim().to_owned(),
        })?;
        Ok(table.into())
    }

    /// Sets a dotted key from its TOML text; text that is not TOML is taken as a string.
    pub fn set(&mut self, assignment: &str) -> Result<(), ConfigError> {
        let Some((key, text)) = assignment.split_once('=') else {
            let message = format!("expected key=value, found {assignment:?}");
            return Err(ConfigError::Syntax { origin: "an assignment".into(), message });
        };
        if key.split('.').count() > DEEPEST {
            let message = format!("a key has {DEEPEST} parts at most, this one more");
            return Err(ConfigError::Syntax { origin: "an assignment".into(), message });
        }
        let value = format!("v = {}", text.trim()).parse::<Table>().ok().and_then(|mut table| table.remove("v"));
        self.lay(key.trim(), value.unwrap_or_else(|| Value::String(text.trim().to_owned())));
        Ok(())
    }

    /// Lays one dotted key over what is there. A new `kind` replaces its table.
    pub fn lay(&mut self, key: &str, value: Value) {
        let mut table = Table::new();
        set_key(&mut table, key, value);
        lay_over(&mut self.table, &table);
    }

    /// Lays a whole table over what is there.
    pub fn lay_table(&mut self, table: &Table) {
        lay_over(&mut self.table, table);
    }

    /// Whether the user gave something at a dotted key.
    pub fn has(&self, key: &str) -> bool {
        self.at(key).is_some()
    }

    /// The value at a dotted key.
    pub(super) fn get(&self, key: &str) -> Option<Value> {
        self.at(key).cloned()
    }

    /// The string at a dotted key.
    pub(super) fn string(&self, key: &str) -> Option<&str> {
        self.at(key)?.as_str()
    }

    fn at(&self, key: &str) -> Option<&Value> {
        let mut parts = key.split('.');
        let first = self.table.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))
    }
}

impl From<Table> for Overrides {
    fn from(table: Table) -> Self {
        Self { table, external: None }
    }
}

/// Puts `value` at a dotted key, making tables on the way.
fn set_key(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
        }
        Some((head, rest)) => {
            let inner = table.entry(head).or_insert_with(|| Value::Table(Table::new()));
            if !inner.is_table() {
                *inner = Value::Table(Table::new());
            }
            set_key(inner.as_table_mut().expect("just made"), rest, value);
        }
    }
}

/// Lays `over` on `base`. A table whose `kind` changes replaces the old one: its other keys belong to that kind.
pub(super) fn lay_over(base: &mut Table, over: &Table) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(Value::Table(old)), Value::Table(new))
                if new.get("kind").is_none_or(|kind| old.get("kind").is_none_or(|old| old == kind)) =>
            {
                lay_over(old, new);
            }
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_toml_or_plain_words() {
        let mut overrides = Overrides::default();
        for assignment in ["train.batch=64", "method.kind=simclr", "augment.mean=[0.1, 0.2, 0.3]", "seed = 7"] {
            overrides.set(assignment).unwrap();
        }
        assert_eq!(overrides.table["train"]["batch"].as_integer(), Some(64));
        assert_eq!(overrides.string("method.kind"), Some("simclr"));
        assert_eq!(overrides.table["augment"]["mean"].as_array().unwrap().len(), 3);
        assert_eq!(overrides.table["seed"].as_integer(), Some(7));
        assert!(overrides.set("no-value").is_err());
        let deep = overrides.set(&format!("a{}=1", ".a".repeat(50_000))).unwrap_err().to_string();
        assert!(deep.contains("16 parts at most") && deep.len() < 200, "{deep}");
    }

    #[test]
    fn a_flag_may_change_the_kind_of_a_recipe() {
        let recipe = "[method]\nkind = 'sogclr'\ntemperature = 0.3\ngamma = { kind = 'constant', value = 0.9 }";
        let mut overrides = Overrides::from(recipe.parse::<Table>().unwrap());
        overrides.set("method.kind=simclr").unwrap();
        assert_eq!(overrides.table["method"].as_table().unwrap().len(), 1, "SogCLR's keys are gone");
    }

    #[test]
    fn a_new_kind_drops_the_old_kinds_keys() {
        let mut base: Table = "[gamma]\nkind = 'constant'\nvalue = 0.8\n[x]\na = 1".parse().unwrap();
        let over: Table = "[gamma]\nkind = 'cosine'\nmin = 0.2\n[x]\nb = 2".parse().unwrap();
        lay_over(&mut base, &over);
        assert!(base["gamma"].get("value").is_none());
        assert_eq!(base["x"].as_table().unwrap().len(), 2);
    }

    #[test]
    fn which_way_up_images_are_is_kept() {
        for ignore_orientation in [false, true] {
            let data = DataConfig { ignore_orientation, ..Default::default() };
            assert_eq!(Overrides::default().images(&data).data().unwrap().0, data);
        }
        assert!(!Overrides::default().data().unwrap().0.ignore_orientation);
    }
}
