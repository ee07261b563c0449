//! Methods side by side, over seeds: Markdown, CSV and JSON.

use super::table;
use serde::Serialize;
use serde_json::Value;

/// One method; every vector has one entry for each seed that finished.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Contender {
    pub method: String,
    /// Top-1 accuracies in [0, 1].
    pub linear: Vec<f64>,
    pub knn: Vec<f64>,
    /// Training time; empty for an encoder that was not trained.
    pub seconds: Vec<f64>,
    /// Most memory resident at once while training; empty where the system does not tell.
    pub peak_rss_mb: Vec<f64>,
    /// Runs that did not finish.
    pub failures: Vec<String>,
}

impl Contender {
    /// Adds `{"linear": {"top1": …}, "knn": {"top1": …}}`.
    pub fn add(&mut self, accuracies: &Value) {
        self.linear.extend(accuracies["linear"]["top1"].as_f64());
        self.knn.extend(accuracies["knn"]["top1"].as_f64());
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
fn percent(values: &[f64]) -> String {
    match mean_and_error(values) {
        (Some(mean), Some(error)) => format!("{:.1} ± {:.1}", 100.0 * mean, 100.0 * error),
        (Some(mean), None) => format!("{:.1}", 100.0 * mean),
        _ => "–".into(),
    }
}

pub fn comparison_markdown(rows: &[Contender]) -> String {
    let plain = |values: &[f64]| mean_and_error(values).0.map_or("–".into(), |mean| format!("{mean:.0}"));
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let accuracies = [percent(&row.linear), percent(&row.knn)];
            let cost = [plain(&row.seconds), plain(&row.peak_rss_mb)];
            [vec![row.method.clone(), row.linear.len().to_string()], accuracies.to_vec(), cost.to_vec()].concat()
        })
        .collect();
    table(&["method", "seeds", "linear top-1 %", "kNN top-1 %", "training s", "peak MB"], &cells)
}

pub fn comparison_csv(rows: &[Contender]) -> String {
    let mut lines = vec!["method,seeds,linear,linear_se,knn,knn_se,seconds,peak_rss_mb".to_owned()];
    let number = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.6}"));
    for row in rows {
        let ((linear, linear_se), (knn, knn_se)) = (mean_and_error(&row.linear), mean_and_error(&row.knn));
        let (seconds, memory) = (mean_and_error(&row.seconds).0, mean_and_error(&row.peak_rss_mb).0);
        let numbers = [linear, linear_se, knn, knn_se, seconds, memory].map(number).join(",");
        lines.push(format!("{},{},{numbers}", row.method, row.linear.len()));
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
        let row = Contender { method: "x".into(), linear: vec![0.6, 0.7, 0.8], knn: vec![0.5], ..Default::default() };
        let csv = comparison_csv(std::slice::from_ref(&row));
        assert!(csv.ends_with("\nx,3,0.700000,0.057735,0.500000,,,\n"), "{csv}");
        let text = comparison_markdown(&[row]);
        assert!(text.contains("70.0 ± 5.8") && text.contains("| 50.0 "), "{text}");
    }
}
