//! Results for people: tables, a sheet of pictures, and the page of a run.

mod comparison;
mod html;
mod looked;
mod picture;
mod run_report;
mod sheet;
mod study;
mod verdict;

pub use comparison::{Contender, comparison_csv, comparison_markdown, mean_and_error};
pub use html::{Updates, page};
pub use looked::{Extremes, Looked, Shown, Viewed, Votes};
pub use run_report::RunReport;
pub use sheet::{Cell, contact_sheet, labelled_sheet};
pub use study::{CurveCell, Results, point};
pub use verdict::{Evidence, Judgement};

use crate::eval::Accuracy;
use comparison::{mixed_versions, percent};

/// A Markdown table whose columns line up.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, &w)| format!("{cell:<w$}")).collect();
        format!("| {} |", padded.join(" | "))
    };
    let rule = format!("|{}|", widths.iter().map(|w| "-".repeat(w + 2)).collect::<Vec<_>>().join("|"));
    let mut lines = vec![line(header.to_vec()), rule];
    lines.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    lines.join("\n")
}

/// 71.3 (69.2–73.3)
pub fn accuracy_cell(accuracy: &Accuracy) -> String {
    let [low, high] = accuracy.interval;
    format!("{:.1} ({:.1}–{:.1})", 100.0 * accuracy.top1, 100.0 * low, 100.0 * high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let text = table(&["a", "long header"], &[vec!["wide cell".into(), "–".into()]]);
        let lengths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(lengths.iter().all(|&l| l == lengths[0]), "{text}");
    }
}
