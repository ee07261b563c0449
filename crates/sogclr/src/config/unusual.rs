//! Which settings of a run are not what such data would get by itself.

use super::{ConfigError, Overrides, RunConfig};
use crate::data::Description;
use toml::{Table, Value};

impl RunConfig {
    /// Keys and values that differ from the defaults for such data; where the data lies is not among them.
    pub fn unusual(&self, data: &Description) -> Result<Vec<(String, String)>, ConfigError> {
        let usual = super::resolve::resolve(data, &Overrides::default().images(&self.data))?;
        let [ours, usual] = [self, &usual].map(|config| {
            let mut flat = Vec::new();
            flatten("", &super::resolve::table(config), &mut flat);
            flat
        });
        let is_own = |(key, value): &(String, String)| {
            !key.starts_with("data.") && !usual.iter().any(|(other, same)| other == key && same == value)
        };
        Ok(ours.into_iter().filter(is_own).collect())
    }
}

fn flatten(prefix: &str, table: &Table, flat: &mut Vec<(String, String)>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(inner) => flatten(&key, inner, flat),
            value => flat.push((key, value.to_string())),
        }
    }
}
