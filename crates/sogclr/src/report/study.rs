//! A study of the paper: its table with the paper's figures beside ours, its chart, and every run as CSV.

use super::{mean_and_error, mixed_versions, percent, table};
use crate::study::{Measure, Outcome, Record, Show, Study};
use std::collections::BTreeMap;

/// The finished runs of a study: for each row and column, by seed.
pub struct Results<'a> {
    /// What was run.
    pub study: &'a Study,
    /// `cells[row][column]`: seed and record of each run.
    pub cells: Vec<Vec<Vec<(u64, Record)>>>,
}

/// A point of the learning curves: epoch and the value of each seed.
pub type CurveCell = (f64, Vec<f64>);

impl Results<'_> {
    /// What the table and the chart show.
    pub fn measure(&self) -> &'static str {
        self.study.measure().headline()
    }

    /// The result of each seed.
    fn by_seed(&self, row: usize, column: usize) -> BTreeMap<u64, f64> {
        self.cells[row][column].iter().map(|(seed, record)| (*seed, record.result.headline())).collect()
    }

    /// The results of a cell, in the order of seeds.
    pub fn values(&self, row: usize, column: usize) -> Vec<f64> {
        self.by_seed(row, column).into_values().collect()
    }

    /// Mean and standard error; where seeds are missing, also how many there are.
    fn cell(&self, values: &[f64]) -> String {
        match values.len() as u64 {
            count if count == 0 || count >= self.study.seeds => percent(values),
            1 => percent(values) + " (1 seed)",
            count => format!("{} ({count} seeds)", percent(values)),
        }
    }

    /// Accuracies along training of the last column's runs.
    pub fn curve(&self, row: usize, is_train: bool) -> Vec<CurveCell> {
        let mut points: Vec<CurveCell> = Vec::new();
        for (_, record) in self.cells[row].last().into_iter().flatten() {
            for point in &record.curve {
                let value = if is_train { point.train } else { point.test };
                match points.iter_mut().find(|(epoch, _)| *epoch == point.epoch) {
                    Some((_, values)) => values.push(value),
                    None => points.push((point.epoch, vec![value])),
                }
            }
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }

    /// The table with the paper's figures, and below it the differences from the reference row.
    pub fn markdown(&self) -> String {
        let study = self.study;
        let lines = match study.show {
            Show::Curves => self.curve_rows(),
            Show::Table | Show::Epsilon => {
                let values = |row: usize| (0..study.columns.len()).map(move |c| self.cell(&self.values(row, c)));
                (0..study.rows.len()).map(|row| values(row).collect()).collect()
            }
        };
        let mut header: Vec<String> = vec![study.axis.clone()];
        header.extend(match study.show {
            Show::Curves => self.curve_header(),
            Show::Table | Show::Epsilon => study.columns.iter().map(|column| column.name.clone()).collect(),
        });
        header.extend(study.published.as_ref().map(|published| format!("paper: {published}")));
        let rows: Vec<Vec<String>> = study
            .rows
            .iter()
            .zip(lines)
            .map(|(row, cells)| {
                let paper = study.published.as_ref().map(|_| row.paper.clone());
                [vec![row.name.clone()], cells, paper.into_iter().collect()].concat()
            })
            .collect();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let text = table(&header, &rows);
        let records = self.cells.iter().flatten().flatten();
        let versions = records.map(|(_, record)| record.numerics()).collect();
        let below = self.differences().into_iter().chain(mixed_versions(&versions));
        below.fold(text, |text, more| format!("{text}\n\n{more}"))
    }

    /// The study's own row less every other, paired by seed: the same seed is the same images and the same start.
    fn differences(&self) -> Option<String> {
        let study = self.study;
        let own = study.rows.iter().position(|row| Some(&row.name) == study.reference.as_ref())?;
        let difference = |row: usize, column: usize| {
            let (ours, theirs) = (self.by_seed(own, column), self.by_seed(row, column));
            let pairs: Vec<f64> = ours.iter().filter_map(|(seed, value)| Some(value - theirs.get(seed)?)).collect();
            let (Some(mean), Some(error)) = mean_and_error(&pairs) else { return "–".into() };
            let reach = student(pairs.len() - 1) * error;
            format!("{:+.1} ({:+.1} to {:+.1})", 100.0 * mean, 100.0 * (mean - reach), 100.0 * (mean + reach))
        };
        let others = (0..study.rows.len()).filter(|row| *row != own);
        let rows: Vec<Vec<String>> = others
            .map(|row| {
                let cells = (0..study.columns.len()).map(|column| difference(row, column));
                std::iter::once(study.rows[row].name.clone()).chain(cells).collect()
            })
            .collect();
        if rows.iter().all(|row| row[1..].iter().all(|cell| cell == "–")) {
            return None;
        }
        let header: Vec<&str> =
            std::iter::once("less").chain(study.columns.iter().map(|column| column.name.as_str())).collect();
        let title = format!("{}, less the others, paired by seed, with 95 % intervals:", study.rows[own].name);
        Some(format!("{title}\n\n{}", table(&header, &rows)))
    }

    /// The epochs of all curves, in order.
    fn curve_epochs(&self) -> Vec<f64> {
        let curves = (0..self.study.rows.len()).flat_map(|row| self.curve(row, false));
        let mut epochs: Vec<f64> = curves.map(|point| point.0).collect();
        epochs.sort_by(f64::total_cmp);
        epochs.dedup();
        epochs
    }

    fn curve_header(&self) -> Vec<String> {
        let epochs = self.curve_epochs();
        let of = |set: &'static str| epochs.iter().map(move |epoch| format!("{set}, epoch {epoch}"));
        of("test").chain(of("training")).collect()
    }

    fn curve_rows(&self) -> Vec<Vec<String>> {
        let epochs = self.curve_epochs();
        let cells = |row: usize, is_train: bool| -> Vec<String> {
            let curve = self.curve(row, is_train);
            let at = |epoch: &f64| curve.iter().find(|point| point.0 == *epoch);
            epochs.iter().map(|epoch| at(epoch).map_or("–".into(), |(_, values)| self.cell(values))).collect()
        };
        (0..self.study.rows.len()).map(|row| [cells(row, false), cells(row, true)].concat()).collect()
    }

    /// One line for every run.
    pub fn csv(&self) -> String {
        let names: &[&str] = match self.study.measure() {
            Measure::Linear => &["linear", "linear_top5", "knn"],
            Measure::LinearPaper => &["linear_paper", "linear_paper_top5"],
            Measure::Retrieval => &["image_to_text", "text_to_image", "mean_recall"],
            Measure::ZeroShot => &["zero_shot", "zero_shot_top5"],
        };
        let values = |result: &Outcome| match result {
            Outcome::Images(found) => vec![found.linear.top1, found.linear.top5, found.knn.top1],
            Outcome::Paper(found) => vec![found.linear_paper.top1, found.linear_paper.top5],
            Outcome::Pairs(found) => vec![found.image_to_text.at1, found.text_to_image.at1, found.mean_recall],
            Outcome::Captions(found) => vec![found.zero_shot.top1, found.zero_shot.top5],
        };
        let mut text = format!("row,column,seed,{},seconds,peak_rss_mb\n", names.join(","));
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
        for (row, cells) in self.study.rows.iter().zip(&self.cells) {
            for (column, runs) in self.study.columns.iter().zip(cells) {
                for (seed, record) in runs {
                    let results = values(&record.result).into_iter().map(|value| number(Some(value)));
                    let mut cells = vec![quoted(&row.name), quoted(&column.name), seed.to_string()];
                    cells.extend(results);
                    cells.extend([number(Some(record.seconds)), number(record.peak_rss_mb)]);
                    text += &(cells.join(",") + "\n");
                }
            }
        }
        text
    }
}

/// Student's t at 97.5 % for some degrees of freedom.
fn student(freedom: usize) -> f64 {
    const SMALL: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    SMALL.get(freedom - 1).copied().unwrap_or(2.2)
}

/// (x, mean in per cent, its standard error) of what was measured.
pub fn point(x: f64, values: &[f64]) -> Option<(f64, f64, f64)> {
    let (mean, error) = mean_and_error(values);
    Some((x, 100.0 * mean?, 100.0 * error.unwrap_or(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{Accuracy, Measured};
    use crate::provenance::Provenance;
    use crate::study::{Budget, CurvePoint};
    use serde_json::json;

    fn record(top1: f64) -> Record {
        let share = |top1: f64| Accuracy { top1, top5: 1.0, interval: [0.0, 1.0], images: 4 };
        Record {
            config: json!({}),
            data: "toy".into(),
            images: 1,
            result: Outcome::Images(Measured { linear: share(top1), linear_train: share(1.0), knn: share(0.25) }),
            curve: vec![
                CurvePoint { epoch: 0.0, test: 0.1, train: 0.2 },
                CurvePoint { epoch: 5.0, test: top1, train: 0.9 },
            ],
            seconds: 3.0,
            peak_rss_mb: None,
            threads: 2,
            processor: String::new(),
            provenance: None,
        }
    }

    fn results(study: &Study) -> Results<'_> {
        let empty = || vec![Vec::new(); study.columns.len()];
        let mut cells: Vec<_> = study.rows.iter().map(|_| empty()).collect();
        *cells[0].last_mut().unwrap() = vec![(0, record(0.5)), (1, record(0.6))];
        Results { study, cells }
    }

    #[test]
    fn a_table_has_the_papers_figures_beside_ours_and_says_what_is_missing() {
        let study = Study::named("batch-epochs", Budget::Hours).unwrap();
        let results = results(&study);
        let text = results.markdown();
        let first = text.lines().nth(2).unwrap();
        assert!(first.contains("55.0 ± 5.0") && first.contains(&study.rows[0].paper), "{first}");
        assert!(text.lines().nth(3).unwrap().contains(" – "), "{text}");
        assert_eq!(results.csv().lines().count(), 3);
        assert!(results.csv().contains(",1,0.6000,1.0000,0.2500,3.0000,\n"), "{}", results.csv());
    }

    #[test]
    fn differences_are_paired_by_seed() {
        let study = Study::named("small-batch", Budget::Hours).unwrap();
        let mut results = results(&study);
        let own = study.rows.iter().position(|row| Some(&row.name) == study.reference.as_ref()).unwrap();
        // Seed 2 has no partner; the others differ by 1 and 3 points: 2 ± 1, and t is 12.7.
        results.cells[own][0] = vec![(0, record(0.51)), (1, record(0.63)), (2, record(0.9))];
        let text = results.markdown();
        let line = text.lines().rfind(|line| line.contains(&study.rows[0].name)).unwrap();
        assert!(line.contains("+2.0 (-10.7 to +14.7)"), "{text}");
        assert!(text.lines().nth(2).unwrap().contains("55.0 ± 5.0 (2 seeds)"), "{text}");
    }

    #[test]
    fn a_curve_is_shown_where_the_first_row_has_none() {
        let study = Study::named("curves", Budget::Hours).unwrap();
        let mut results = results(&study);
        let first = std::mem::take(&mut results.cells[0]);
        results.cells[0] = vec![Vec::new(); study.columns.len()];
        results.cells[1] = first;
        let text = results.markdown();
        assert!(text.lines().nth(3).unwrap().contains("55.0 ± 5.0"), "{text}");
    }

    #[test]
    fn curves_are_means_over_seeds() {
        let study = Study::named("curves", Budget::Hours).unwrap();
        let results = results(&study);
        let text = results.markdown();
        assert!(text.contains("test, epoch 5") && text.contains("training, epoch 0"), "{text}");
        let first = text.lines().nth(2).unwrap();
        assert!(first.contains("55.0 ± 5.0") && first.contains("90.0 ± 0.0"), "{first}");
    }

    #[test]
    fn a_table_of_two_numerics_says_so() {
        let study = Study::named("batch-epochs", Budget::Hours).unwrap();
        let mut results = results(&study);
        assert!(!results.markdown().contains("numerics"));
        let cell = results.cells[0].last_mut().unwrap();
        cell[0].1.provenance = Some(Provenance { program: "later".into(), numerics: 7 });
        assert!(results.markdown().contains("Runs of numerics 0 and 7 stand side by side"), "{}", results.markdown());
    }
}
