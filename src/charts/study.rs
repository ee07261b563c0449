//! The charts of a study of the paper.

use super::{Chart, Dots, Series};
use sogclr::report::{Results, point};
use sogclr::study::Show;

/// Charts as (suffix of the file's name, SVG).
pub fn study_charts(results: &Results) -> Vec<(&'static str, String)> {
    let study = results.study;
    if study.show == Show::Curves {
        return [("-test", false, "test images"), ("-train", true, "training images")]
            .map(|(suffix, is_train, set)| {
                let series = study.rows.iter().enumerate().map(|(row, of)| {
                    let points: Vec<_> =
                        results.curve(row, is_train).iter().filter_map(|(x, values)| point(*x, values)).collect();
                    Series::with_errors(&of.name, &points)
                });
                let title = format!("{}: linear top-1 % on {set}", study.title);
                let (x, y) = ("epochs", "linear top-1 %");
                let series = series.collect();
                (suffix, Chart { title: &title, x, y, is_log_x: false, is_log_y: false, series }.svg())
            })
            .to_vec();
    }
    let y = results.measure();
    let places: Vec<Option<f64>> = study.columns.iter().map(|column| column.x).collect();
    if places.len() > 1 && places.iter().all(Option::is_some) {
        let series = study.rows.iter().enumerate().map(|(row, of)| {
            let points: Vec<_> = places
                .iter()
                .enumerate()
                .filter_map(|(column, x)| point((*x)?, &results.values(row, column)))
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
            let name = if study.columns.len() > 1 { format!("{}, {}", row.name, of.name) } else { row.name.clone() };
            rows.extend(point(0.0, &results.values(index, column)).map(|(_, value, error)| (name, value, error)));
        }
    }
    vec![("", Dots { title: &study.title, x: y, rows }.svg())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use sogclr::study::{Budget, Study};

    #[test]
    fn curves_have_a_chart_for_each_set_and_tables_one() {
        let charts = |name: &str| {
            let study = Study::named(name, Budget::Hours).unwrap();
            let cells = vec![vec![Vec::new(); study.columns.len()]; study.rows.len()];
            study_charts(&Results { study: &study, cells }).into_iter().map(|chart| chart.0).collect::<Vec<_>>()
        };
        assert_eq!(charts("curves"), ["-test", "-train"]);
        assert_eq!(charts("batch-epochs"), [""]);
    }
}
