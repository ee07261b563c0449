//! The key that a misspelt one stands for.

use super::reference::all_keys;
use toml::Table;

/// How much of a name must agree for it to be suggested.
const ALIKE: f64 = 0.7;

/// The dotted key of `table` that ends in `field`, as the user wrote it.
pub(super) fn path_of(table: &Table, field: &str) -> Option<String> {
    if table.contains_key(field) {
        return Some(field.to_owned());
    }
    let inner = table.iter().filter_map(|(key, value)| Some((key, value.as_table()?)));
    inner.into_iter().find_map(|(key, inner)| path_of(inner, field).map(|rest| format!("{key}.{rest}")))
}

/// The existing key nearest to `given`: the last part decides, and among equals the whole.
pub(super) fn nearest(given: &str) -> Option<String> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let of_key = |key: String| {
        let (own, whole) = (strsim::jaro_winkler(&last(given), &last(&key)), strsim::jaro_winkler(given, &key));
        (own, whole, key)
    };
    let best = all_keys().into_iter().map(of_key).max_by(|a, b| (a.0 + 0.1 * a.1).total_cmp(&(b.0 + 0.1 * b.1)))?;
    (best.0 >= ALIKE).then_some(best.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_and_misplaced_keys_are_found() {
        for (given, key) in [
            ("method.temprature", "method.temperature"),
            ("lr.base", "learning_rate.base"),
            ("train.wamup_epochs", "learning_rate.warmup_epochs"),
        ] {
            assert_eq!(nearest(given).as_deref(), Some(key));
        }
        assert_eq!(nearest("qqqqzzzz"), None);
        let table = "[a.b]\nc = 1".parse().unwrap();
        assert_eq!(path_of(&table, "c").as_deref(), Some("a.b.c"));
    }
}
