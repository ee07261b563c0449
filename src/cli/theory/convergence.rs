//! `sogclr theory convergence`.

use super::{World, make_folder, write_results};
use crate::cli::error::CliError;
use crate::cli::progress::counter;
use crate::report::{Chart, Series, table};
use crate::theory::{Descent, LinearProblem, Point, steps_to};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Follow the exact gradient of the global objective along training.
///
/// Freezes the encoder, takes its features of N images with M augmentations each, whitened to 8 directions, and trains a linear layer on top with
/// SimCLR's estimator (eq. 6) and with SogCLR, for several batches and the same number of steps T: the momentum form of
/// Algorithm 1 with the theorems' step sizes, beta = sqrt(B/T), gamma = sqrt(n/T), eta = c min(beta, gamma B/n). Reports ‖∇F‖² of both
/// versions of the objective, and how many steps the mean of it needs to come down to a tenth (the parallel speed-up of
/// Theorem 2).
///
/// The encoder is that of --run, or untrained. OUT gets convergence.csv, convergence.json and charts.
#[derive(Args)]
pub struct Convergence {
    #[command(flatten)]
    world: World,
    /// Images of the problem
    #[arg(long, value_name = "N", default_value_t = 64)]
    images: usize,
    /// Batches, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4,8,16,32")]
    batches: Vec<usize>,
    /// Steps of every run
    #[arg(long, value_name = "T", default_value_t = 50_000)]
    steps: usize,
    /// c of the step size
    #[arg(long, value_name = "C", default_value_t = 0.5)]
    rate: f64,
    /// Folder for the results
    #[arg(long, value_name = "OUT", default_value = "runs/theory-convergence")]
    out: PathBuf,
}

/// Looks at the exact gradient along a run.
const LOOKS: usize = 60;
/// Share of a run at its end whose mean ‖∇F‖² is where it came to.
const TAIL: usize = 10;
/// Share of the first ‖∇F‖² that counts as reached.
const LEVEL: f64 = 0.1;
/// Directions of the features that are kept, and values that the layer makes of them.
const COMPONENTS: usize = 8;
const OUTPUT: usize = 4;

struct Curve {
    name: &'static str,
    batch: usize,
    points: Vec<Point>,
}

impl Convergence {
    pub fn run(self) -> Result<(), CliError> {
        let fits = |batch: &usize| (2..=self.images).contains(batch);
        if self.steps < LOOKS || !self.batches.iter().all(fits) || !(self.rate > 0.0 && self.rate.is_finite()) {
            let problem = format!("--steps must be at least {LOOKS}, --batches from 2 to --images, --rate positive");
            return Err(CliError::Input(problem));
        }
        make_folder(&self.out)?;
        let (features, temperature) = self.world.features(self.images)?;
        let bar = counter("runs", 2 * self.batches.len());
        let mut curves = Vec::new();
        for &batch in &self.batches {
            for (name, is_sogclr) in [("eq. (6)", false), ("SogCLR", true)] {
                let seed = self.world.seed;
                let mut problem = LinearProblem::new(&features, COMPONENTS, OUTPUT, seed);
                let descent = Descent { batch, steps: self.steps, rate: self.rate, temperature, seed };
                let points = descent.run(&mut problem, is_sogclr, LOOKS);
                curves.push(Curve { name, batch, points: points.map_err(|e| CliError::Failed(e.to_string()))? });
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        self.report(&curves)
    }

    fn report(&self, curves: &[Curve]) -> Result<(), CliError> {
        let start = curves[0].points[0].gradient_v2;
        let level = LEVEL * start;
        let tail = |points: &[Point], of: fn(&Point) -> f64| {
            let last = &points[points.len() - TAIL.min(points.len())..];
            last.iter().map(of).sum::<f64>() / last.len() as f64
        };
        let rows: Vec<Vec<String>> = curves
            .iter()
            .map(|curve| {
                let points = &curve.points;
                vec![
                    curve.name.into(),
                    curve.batch.to_string(),
                    format!("{:.5}", points[points.len() - 1].objective),
                    format!("{:.3e}", tail(points, |p| p.gradient_v1)),
                    format!("{:.3e}", tail(points, |p| p.gradient_v2)),
                    steps_to(points, level).map_or("–".into(), |steps| steps.to_string()),
                ]
            })
            .collect();
        let header = ["estimator", "batch", "F (V1)", "‖∇F‖² V1, end", "‖∇F‖² V2, end", "steps to a tenth"];
        let text = table(&header, &rows);
        println!("{text}");
        let csv: String = std::iter::once("estimator,batch,step,objective,gradient_v1,gradient_v2\n".to_owned())
            .chain(curves.iter().flat_map(|curve| {
                curve.points.iter().map(|p| {
                    let (name, batch) = (curve.name, curve.batch);
                    format!("{name},{batch},{},{},{:e},{:e}\n", p.step, p.objective, p.gradient_v1, p.gradient_v2)
                })
            }))
            .collect();
        let chart = |title, y, of: fn(&Point) -> f64| {
            let series = curves.iter().map(|curve| {
                let points = curve.points.iter().map(|point| (point.step as f64, of(point))).collect();
                Series::new(format!("{}, B = {}", curve.name, curve.batch), points)
            });
            Chart { title, x: "step", y, is_log_x: false, is_log_y: true, series: series.collect() }.svg()
        };
        let by_batch = |name: &str| {
            let curves = curves.iter().filter(|curve| curve.name == name);
            let steps = |curve: &Curve| Some((curve.batch as f64, steps_to(&curve.points, level)? as f64));
            Series::new(name, curves.filter_map(steps).collect())
        };
        let speed_up = Chart {
            title: "Steps until the mean of ‖∇F‖² (V2) is a tenth of its start",
            x: "batch",
            y: "steps",
            is_log_x: true,
            is_log_y: true,
            series: vec![by_batch("eq. (6)"), by_batch("SogCLR")],
        };
        let runs: Vec<_> = curves
            .iter()
            .map(|curve| json!({ "estimator": curve.name, "batch": curve.batch, "points": curve.points }))
            .collect();
        let document = json!({
            "images": self.images, "augmentations": self.world.augmentations, "steps": self.steps,
            "rate": self.rate, "seed": self.world.seed, "level": level, "runs": runs,
        });
        write_results(
            &self.out,
            &document,
            &[
                ("convergence.md", text + "\n"),
                ("convergence.csv", csv),
                ("convergence-v1.svg", chart("‖∇F‖² of V1 along training", "‖∇F‖²", |p| p.gradient_v1)),
                ("convergence-v2.svg", chart("‖∇F‖² of V2 along training", "‖∇F‖²", |p| p.gradient_v2)),
                ("speed-up.svg", speed_up.svg()),
            ],
            "convergence.json",
        )?;
        println!("results: {0}/convergence.{{md,csv,json}}, convergence-v*.svg and speed-up.svg", self.out.display());
        Ok(())
    }
}
