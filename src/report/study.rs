//! A study of the paper: its table with the paper's figures beside ours, its chart, and every run as CSV.

use super::{Chart, Dots, Series, mean_and_error, percent, table};
use crate::study::{Kind, Record, Show, Study};
use serde_json::Value;

/// The finished runs of a study: for each row and column, by seed.
pub struct Results<'a> {
    pub study: &'a Study,
    pub cells: Vec<Vec<Vec<(u64, Record)>>>,
}

/// A point of the learning curves: row, epoch and the value of each seed.
type CurveCell = (f64, Vec<f64>);

impl Results<'_> {
    /// What the table and the chart show, and its place in a record.
    fn measure(&self) -> (&'static str, &'static str) {
        match self.study.kind {
            Kind::Images => ("linear top-1 %", "/linear/top1"),
            Kind::Pairs => ("mean recall %", "/mean_recall"),
        }
    }

    fn values(&self, row: usize, column: usize) -> Vec<f64> {
        let pointer = self.measure().1;
        let of = |record: &Record| record.result.pointer(pointer).and_then(Value::as_f64);
        self.cells[row][column].iter().filter_map(|(_, record)| of(record)).collect()
    }

    /// Mean accuracies along training of the last column's runs.
    fn curve(&self, row: usize, is_train: bool) -> Vec<CurveCell> {
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

    pub fn markdown(&self) -> String {
        let study = self.study;
        let lines = match study.show {
            Show::Curves => self.curve_rows(),
            Show::Table | Show::Epsilon => {
                let values = |row: usize| (0..study.columns.len()).map(move |c| percent(&self.values(row, c)));
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
        table(&header, &rows)
    }

    fn curve_header(&self) -> Vec<String> {
        let epochs: Vec<f64> = self.curve(0, false).iter().map(|point| point.0).collect();
        let of = |set: &'static str| epochs.iter().map(move |epoch| format!("{set}, epoch {epoch}"));
        of("test").chain(of("training")).collect()
    }

    fn curve_rows(&self) -> Vec<Vec<String>> {
        let columns = self.curve(0, false).len();
        let cells = |row: usize, is_train: bool| {
            let mut cells: Vec<String> = self.curve(row, is_train).iter().map(|(_, values)| percent(values)).collect();
            cells.resize(columns, "–".into());
            cells
        };
        (0..self.study.rows.len()).map(|row| [cells(row, false), cells(row, true)].concat()).collect()
    }

    /// One line for every run.
    pub fn csv(&self) -> String {
        let keys: &[(&str, &str)] = match self.study.kind {
            Kind::Images => &[("linear", "/linear/top1"), ("linear_top5", "/linear/top5"), ("knn", "/knn/top1")],
            Kind::Pairs => &[
                ("image_to_text", "/image_to_text/at1"),
                ("text_to_image", "/text_to_image/at1"),
                ("mean_recall", "/mean_recall"),
            ],
        };
        let names: Vec<&str> = keys.iter().map(|(name, _)| *name).collect();
        let mut text = format!("row,column,seed,{},seconds,peak_rss_mb\n", names.join(","));
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
        for (row, cells) in self.study.rows.iter().zip(&self.cells) {
            for (column, runs) in self.study.columns.iter().zip(cells) {
                for (seed, record) in runs {
                    let results = keys.iter().map(|(_, at)| number(record.result.pointer(at).and_then(Value::as_f64)));
                    let mut cells = vec![quoted(&row.name), quoted(&column.name), seed.to_string()];
                    cells.extend(results);
                    cells.extend([number(Some(record.seconds)), number(record.peak_rss_mb)]);
                    text += &(cells.join(",") + "\n");
                }
            }
        }
        text
    }

    /// Charts as (suffix of the file's name, SVG).
    pub fn charts(&self) -> Vec<(&'static str, String)> {
        let study = self.study;
        if study.show == Show::Curves {
            return [("-test", false, "test images"), ("-train", true, "training images")]
                .map(|(suffix, is_train, set)| {
                    let series = study.rows.iter().enumerate().map(|(row, of)| {
                        let points: Vec<_> =
                            self.curve(row, is_train).iter().filter_map(|(x, values)| point(*x, values)).collect();
                        Series::with_errors(&of.name, &points)
                    });
                    let title = format!("{}: linear top-1 % on {set}", study.title);
                    let (x, y) = ("epochs", "linear top-1 %");
                    let series = series.collect();
                    (suffix, Chart { title: &title, x, y, is_log_x: false, is_log_y: false, series }.svg())
                })
                .to_vec();
        }
        let (y, _) = self.measure();
        let places: Vec<Option<f64>> = study.columns.iter().map(|column| column.x).collect();
        if places.len() > 1 && places.iter().all(Option::is_some) {
            let series = study.rows.iter().enumerate().map(|(row, of)| {
                let points: Vec<_> = places
                    .iter()
                    .enumerate()
                    .filter_map(|(column, x)| point((*x)?, &self.values(row, column)))
                    .collect();
                Series::with_errors(&of.name, &points)
            });
            let (title, x) = (&study.title, &study.axis);
            let series = series.collect();
            return vec![("", Chart { title, x, y, is_log_x: study.log_axis, is_log_y: false, series }.svg())];
        }
        let mut rows = Vec::new();
        for (index, row) in study.rows.iter().enumerate() {
            for (column, of) in study.columns.iter().enumerate() {
                let name =
                    if study.columns.len() > 1 { format!("{}, {}", row.name, of.name) } else { row.name.clone() };
                rows.extend(point(0.0, &self.values(index, column)).map(|(_, value, error)| (name, value, error)));
            }
        }
        vec![("", Dots { title: &study.title, x: y, rows }.svg())]
    }
}

/// (x, mean in per cent, its standard error) of what was measured.
fn point(x: f64, values: &[f64]) -> Option<(f64, f64, f64)> {
    let (mean, error) = mean_and_error(values);
    Some((x, 100.0 * mean?, 100.0 * error.unwrap_or(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{Budget, CurvePoint};
    use serde_json::json;

    fn record(top1: f64) -> Record {
        Record {
            config: json!({}),
            data: "toy".into(),
            images: 1,
            result: json!({ "linear": { "top1": top1, "top5": 1.0 }, "knn": { "top1": 0.25 } }),
            curve: vec![
                CurvePoint { epoch: 0.0, test: 0.1, train: 0.2 },
                CurvePoint { epoch: 5.0, test: top1, train: 0.9 },
            ],
            seconds: 3.0,
            peak_rss_mb: None,
            threads: 2,
            processor: String::new(),
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
        assert_eq!(results.charts().len(), 1);
    }

    #[test]
    fn curves_are_means_over_seeds() {
        let study = Study::named("curves", Budget::Hours).unwrap();
        let results = results(&study);
        let text = results.markdown();
        assert!(text.contains("test, epoch 5") && text.contains("training, epoch 0"), "{text}");
        let first = text.lines().nth(2).unwrap();
        assert!(first.contains("55.0 ± 5.0") && first.contains("90.0 ± 0.0"), "{first}");
        assert_eq!(results.charts().iter().map(|chart| chart.0).collect::<Vec<_>>(), ["-test", "-train"]);
    }
}
