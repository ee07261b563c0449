//! Objective, signals and probe accuracy of all runs over epochs.

use super::chart::{Chart, Line};
use crate::report::RunReport;
use crate::train::{Metric, Signals};
use askama::Template;

#[derive(Template)]
#[template(path = "report/curves.html")]
pub(super) struct Curves {
    charts: Vec<Chart>,
    runs: Vec<(usize, String)>,
}

impl Curves {
    pub fn of(runs: &[RunReport]) -> Self {
        let signal = |get: fn(&Signals) -> f64| move |metric: &Metric| metric.signals.as_ref().map(get);
        let chart = |title: &str, text: &str, get: &dyn Fn(&Metric) -> Option<f64>| {
            let line = |(colour, run): (usize, &RunReport)| Line {
                name: run.name.clone(),
                colour,
                points: run.metrics.iter().filter_map(|metric| Some((metric.epoch, get(metric)?))).collect(),
                has_dots: false,
            };
            Chart::new(title, text, runs.iter().enumerate().map(line).collect())
        };
        let charts = [
            chart("objective", "falls while it learns; comparable within one method and temperature", &|m| m.objective),
            chart("loss", "whose gradient is followed; SogCLR's may rise while all is well", &|m| Some(m.loss)),
            Chart::new(
                "probe accuracy %",
                "linear and nearest neighbours, as `sogclr eval` measured them",
                probes(runs),
            ),
            chart("contrastive accuracy", "share of a batch whose other view is nearest", &signal(|s| s.accuracy)),
            chart("effective rank", "directions in use; 1 is a collapse", &signal(|s| s.effective_rank)),
            chart("alignment", "distance of two views; 0: they agree", &signal(|s| s.alignment)),
            chart("uniformity", "0: one point; about −4: spread over the sphere", &signal(|s| s.uniformity)),
            chart("spread", "0: one point; 1: even", &signal(|s| s.spread)),
            chart("learning rate", "", &|m| Some(m.lr)),
            chart("images per second", "", &|m| Some(m.images_per_s)),
        ];
        let runs = runs.iter().enumerate().map(|(colour, run)| (colour % 8, run.name.clone()));
        Self { charts: charts.into_iter().flatten().collect(), runs: runs.collect() }
    }
}

/// What `sogclr eval` kept: one line for each evaluation and data set.
fn probes(runs: &[RunReport]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for (colour, run) in runs.iter().enumerate() {
        let steps_per_epoch = (run.samples / run.config.train.batch).max(1) as f64;
        for (of, result) in &run.evaluations {
            let Some(top1) = result["top1"].as_f64() else { continue };
            let name = format!("{}: {} on {}", run.name, of.evaluation, of.data);
            let point = (of.step as f64 / steps_per_epoch, 100.0 * top1);
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line { name, colour, points: vec![point], has_dots: true }),
            }
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    lines
}
