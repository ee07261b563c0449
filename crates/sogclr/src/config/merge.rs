//! What the user gave, as one TOML table: recipe file first, then `--set key=value` and flags on top.

use super::ConfigError;
use std::path::Path;
use toml::{Table, Value};

/// The user's keys, not yet checked against the types.
#[derive(Clone, Debug, Default)]
pub struct Overrides(pub Table);

impl Overrides {
    /// A recipe file, or a run folder's `config.toml`.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let table = text.parse::<Table>().map_err(|error| ConfigError::Syntax {
            origin: path.display().to_string(),
            message: error.to_string().trim().to_owned(),
        })?;
        Ok(Self(table))
    }

    /// Sets a dotted key from its TOML text; text that is not TOML is taken as a string.
    pub fn set(&mut self, assignment: &str) -> Result<(), ConfigError> {
        let Some((key, text)) = assignment.split_once('=') else {
            let message = format!("expected key=value, found {assignment:?}");
            return Err(ConfigError::Syntax { origin: "--set".into(), message });
        };
        let value = format!("v = {}", text.trim()).parse::<Table>().ok().and_then(|mut table| table.remove("v"));
        self.lay(key.trim(), value.unwrap_or_else(|| Value::String(text.trim().to_owned())));
        Ok(())
    }

    /// Lays one dotted key over what is there. A new `kind` replaces its table.
    pub fn lay(&mut self, key: &str, value: Value) {
        let mut table = Table::new();
        set_key(&mut table, key, value);
        lay_over(&mut self.0, &table);
    }

    /// Lays a whole table over what is there.
    pub fn lay_table(&mut self, table: &Table) {
        lay_over(&mut self.0, table);
    }

    /// The string at a dotted key.
    pub(super) fn string(&self, key: &str) -> Option<&str> {
        let mut parts = key.split('.');
        let first = self.0.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))?.as_str()
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
        assert_eq!(overrides.0["train"]["batch"].as_integer(), Some(64));
        assert_eq!(overrides.string("method.kind"), Some("simclr"));
        assert_eq!(overrides.0["augment"]["mean"].as_array().unwrap().len(), 3);
        assert_eq!(overrides.0["seed"].as_integer(), Some(7));
        assert!(overrides.set("no-value").is_err());
    }

    #[test]
    fn a_flag_may_change_the_kind_of_a_recipe() {
        let recipe = "[method]\nkind = 'sogclr'\ntemperature = 0.3\ngamma = { kind = 'constant', value = 0.9 }";
        let mut overrides = Overrides(recipe.parse().unwrap());
        overrides.set("method.kind=simclr").unwrap();
        assert_eq!(overrides.0["method"].as_table().unwrap().len(), 1, "SogCLR's keys are gone");
    }

    #[test]
    fn a_new_kind_drops_the_old_kinds_keys() {
        let mut base: Table = "[gamma]\nkind = 'constant'\nvalue = 0.8\n[x]\na = 1".parse().unwrap();
        let over: Table = "[gamma]\nkind = 'cosine'\nmin = 0.2\n[x]\nb = 2".parse().unwrap();
        lay_over(&mut base, &over);
        assert!(base["gamma"].get("value").is_none());
        assert_eq!(base["x"].as_table().unwrap().len(), 2);
    }
}
