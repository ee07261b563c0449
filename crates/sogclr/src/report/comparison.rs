//! Methods side by side, over seeds: Markdown, CSV and JSON.

use super::table;
use crate::study::{Measure, Outcome};
use crate::train::TrainSummary;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// One method; every vector has one entry for each seed that finished.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Contender {
    /// The method's name.
    pub method: String,
    /// Shares in [0, 1] by the key of their measure.
    #[serde(flatten)]
    pub values: BTreeMap<&'static str, Vec<f64>>,
    /// Training time; empty for an encoder that was not trained.
    pub seconds: Vec<f64>,
    /// Most memory resident at once while training; empty where the system does not tell.
    pub peak_rss_mb: Vec<f64>,
    /// Runs that did not finish.
    pub failures: Vec<String>,
    /// Versions of the numerics that its runs were computed with.
    pub numerics: BTreeSet<u32>,
}

impl Contender {
    /// Adds one run's result.
    pub fn add(&mut self, result: &Outcome) {
        for ((key, _), value) in result.measure().columns().iter().zip(result.values()) {
            self.values.entry(key).or_default().push(value);
        }
    }

    /// Adds what a run's training took.
    pub fn add_cost(&mut self, cost: &TrainSummary) {
        self.seconds.push(cost.seconds);
        self.peak_rss_mb.extend(cost.peak_rss_mb);
        self.numerics.insert(cost.provenance.as_ref().map_or(0, |origin| origin.numerics));
    }

    fn of(&self, key: &str) -> &[f64] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    /// Seeds that finished.
    fn seeds(&self) -> usize {
        self.values.values().map(Vec::len).max().unwrap_or(0)
    }
}

/// A sentence where figures of several versions of the numerics stand side by side.
pub(super) fn mixed_versions(versions: &BTreeSet<u32>) -> Option<String> {
    let names: Vec<String> = versions.iter().map(u32::to_string).collect();
    let names = names.join(" and ");
    (versions.len() > 1)
        .then(|| format!("Runs of numerics {names} stand side by side here: their bytes differ by design."))
}

/// Mean and standard error s/√n; the error is `None` for one value, both for none.
pub fn mean_and_error(values: &[f64]) -> (Option<f64>, Option<f64>) {
    let count = values.len() as f64;
    if values.is_empty() {
        return (None, None);
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let error = (values.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt());
    (Some(mean), error)
}

/// 71.3 ± 0.4
pub(super) fn percent(values: &[f64]) -> String {
    match mean_and_error(values) {
        (Some(mean), Some(error)) => format!("{:.1} ± {:.1}", 100.0 * mean, 100.0 * error),
        (Some(mean), None) => format!("{:.1}", 100.0 * mean),
        _ => "–".into(),
    }
}

/// The rows as a Markdown table.
pub fn comparison_markdown(rows: &[Contender], measure: Measure) -> String {
    let columns = measure.columns();
    let plain = |values: &[f64]| match mean_and_error(values) {
        (Some(mean), Some(error)) => format!("{mean:.0} ± {error:.0}"),
        (Some(mean), None) => format!("{mean:.0}"),
        _ => "–".into(),
    };
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mut cells = vec![row.method.clone(), row.seeds().to_string()];
            cells.extend(columns.iter().map(|(key, _)| percent(row.of(key))));
            cells.extend([plain(&row.seconds), plain(&row.peak_rss_mb)]);
            cells
        })
        .collect();
    let mut header = vec!["method", "seeds"];
    header.extend(columns.iter().map(|(_, title)| title));
    header.extend(["training s", "peak MB"]);
    let text = table(&header, &cells);
    let versions = rows.iter().flat_map(|row| row.numerics.iter().copied()).collect();
    match mixed_versions(&versions) {
        Some(sentence) => format!("{text}\n\n{sentence}"),
        None => text,
    }
}

/// The rows as CSV.
pub fn comparison_csv(rows: &[Contender], measure: Measure) -> String {
    let measures = measure.columns();
    let columns: String = measures.iter().map(|(key, _)| format!("{key},{key}_se,")).collect();
    let mut lines = vec![format!("method,seeds,{columns}seconds,seconds_se,peak_rss_mb,peak_rss_mb_se")];
    let number = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.6}"));
    for row in rows {
        let mut cells = vec![row.method.clone(), row.seeds().to_string()];
        for (key, _) in measures {
            let (mean, error) = mean_and_error(row.of(key));
            cells.extend([number(mean), number(error)]);
        }
        for values in [&row.seconds, &row.peak_rss_mb] {
            let (mean, error) = mean_and_error(values);
            cells.extend([number(mean), number(error)]);
        }
        lines.push(cells.join(","));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{Accuracy, Measured};

    #[test]
    fn mean_and_standard_error_by_hand() {
        let (mean, error) = mean_and_error(&[0.6, 0.7, 0.8]);
        assert!((mean.unwrap() - 0.7).abs() < 1e-12);
        assert!((error.unwrap() - 0.1 / 3.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(mean_and_error(&[0.5]), (Some(0.5), None));
        let mut row = Contender { method: "x".into(), ..Default::default() };
        let share = |top1: f64| Accuracy { top1, top5: 1.0, interval: [0.0, 1.0], images: 10 };
        for top1 in [0.6, 0.7, 0.8] {
            row.add(&Outcome::Images(Measured { linear: share(top1), linear_train: share(1.0), knn: share(0.5) }));
        }
        let csv = comparison_csv(std::slice::from_ref(&row), Measure::Linear);
        assert!(
            csv.starts_with("method,seeds,linear,linear_se,knn,knn_se,seconds,seconds_se,peak_rss_mb,peak_rss_mb_se\n"),
            "{csv}"
        );
        assert!(csv.ends_with("\nx,3,0.700000,0.057735,0.500000,0.000000,,,,\n"), "{csv}");
        let text = comparison_markdown(std::slice::from_ref(&row), Measure::Linear);
        assert!(text.contains("70.0 ± 5.8") && text.contains("| 50.0 "), "{text}");
        assert!(!text.contains("numerics"), "{text}");
        row.numerics = BTreeSet::from([0, 3]);
        assert!(comparison_markdown(&[row], Measure::Linear).contains("numerics 0 and 3"));
    }
}
