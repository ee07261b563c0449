//! Methods side by side, over seeds: Markdown, CSV and JSON.

use super::table;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// What a race measures: its key in the files, its column, and where a run's result has it.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    pub key: &'static str,
    pub title: &'static str,
    pub pointer: &'static str,
}

/// Of encoders of images.
pub const IMAGE_MEASURES: &[Measure] = &[
    Measure { key: "linear", title: "linear top-1 %", pointer: "/linear/top1" },
    Measure { key: "knn", title: "kNN top-1 %", pointer: "/knn/top1" },
];

/// Of encoders of image–text pairs.
pub const PAIR_MEASURES: &[Measure] = &[
    Measure { key: "image_to_text", title: "image to text R@1 %", pointer: "/image_to_text/at1" },
    Measure { key: "text_to_image", title: "text to image R@1 %", pointer: "/text_to_image/at1" },
    Measure { key: "mean_recall", title: "mean recall %", pointer: "/mean_recall" },
];

/// One method; every vector has one entry for each seed that finished.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Contender {
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
}

impl Contender {
    /// Adds one run's result.
    pub fn add(&mut self, result: &Value, measures: &[Measure]) {
        for measure in measures {
            let found = result.pointer(measure.pointer).and_then(Value::as_f64);
            self.values.entry(measure.key).or_default().extend(found);
        }
    }

    fn of(&self, measure: &Measure) -> &[f64] {
        self.values.get(measure.key).map_or(&[], Vec::as_slice)
    }

    /// Seeds that finished.
    fn seeds(&self) -> usize {
        self.values.values().map(Vec::len).max().unwrap_or(0)
    }
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

pub fn comparison_markdown(rows: &[Contender], measures: &[Measure]) -> String {
    let plain = |values: &[f64]| match mean_and_error(values) {
        (Some(mean), Some(error)) => format!("{mean:.0} ± {error:.0}"),
        (Some(mean), None) => format!("{mean:.0}"),
        _ => "–".into(),
    };
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mut cells = vec![row.method.clone(), row.seeds().to_string()];
            cells.extend(measures.iter().map(|measure| percent(row.of(measure))));
            cells.extend([plain(&row.seconds), plain(&row.peak_rss_mb)]);
            cells
        })
        .collect();
    let mut header = vec!["method", "seeds"];
    header.extend(measures.iter().map(|measure| measure.title));
    header.extend(["training s", "peak MB"]);
    table(&header, &cells)
}

pub fn comparison_csv(rows: &[Contender], measures: &[Measure]) -> String {
    let columns: String = measures.iter().map(|measure| format!("{0},{0}_se,", measure.key)).collect();
    let mut lines = vec![format!("method,seeds,{columns}seconds,seconds_se,peak_rss_mb,peak_rss_mb_se")];
    let number = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.6}"));
    for row in rows {
        let mut cells = vec![row.method.clone(), row.seeds().to_string()];
        for measure in measures {
            let (mean, error) = mean_and_error(row.of(measure));
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

    #[test]
    fn mean_and_standard_error_by_hand() {
        let (mean, error) = mean_and_error(&[0.6, 0.7, 0.8]);
        assert!((mean.unwrap() - 0.7).abs() < 1e-12);
        assert!((error.unwrap() - 0.1 / 3.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(mean_and_error(&[0.5]), (Some(0.5), None));
        let mut row = Contender { method: "x".into(), ..Default::default() };
        row.add(&serde_json::json!({ "linear": { "top1": 0.6 }, "knn": { "top1": 0.5 } }), IMAGE_MEASURES);
        row.add(&serde_json::json!({ "linear": { "top1": 0.7 } }), IMAGE_MEASURES);
        row.add(&serde_json::json!({ "linear": { "top1": 0.8 } }), IMAGE_MEASURES);
        let csv = comparison_csv(std::slice::from_ref(&row), IMAGE_MEASURES);
        assert!(
            csv.starts_with("method,seeds,linear,linear_se,knn,knn_se,seconds,seconds_se,peak_rss_mb,peak_rss_mb_se\n"),
            "{csv}"
        );
        assert!(csv.ends_with("\nx,3,0.700000,0.057735,0.500000,,,,,\n"), "{csv}");
        let text = comparison_markdown(&[row], IMAGE_MEASURES);
        assert!(text.contains("70.0 ± 5.8") && text.contains("| 50.0 "), "{text}");
    }
}
