//! `sogclr theory bias`.

use super::{World, folder_name, write_results};
use crate::cli::error::CliError;
use crate::cli::progress::counter;
use crate::report::{Chart, Series, table};
use crate::theory::{BiasRow, BiasStudy, EstimatorKind, log_slope};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Compare what mini-batches estimate with the gradient of the global objective.
///
/// Takes N images with M augmentations each as the whole world, so that the objective (V1 and V2) and its gradient are exact,
/// and measures at frozen weights: bias, variance and cosine of SimCLR's estimators (eq. 6, which leaves the positive out, and
/// NT-Xent) for batches from 8 up, and of SogCLR's for several γ after several passes over the data.
///
/// The encoder is that of --run, or untrained. OUT gets bias.csv, bias.json and charts.
#[derive(Args)]
#[command(after_help = "Example:\n  sogclr theory bias --run runs/demo/sogclr --out runs/bias")]
pub struct Bias {
    #[command(flatten)]
    world: World,
    /// Images of the problem; a power of two
    #[arg(long, value_name = "N", default_value_t = 512)]
    images: usize,
    /// Passes over the images that expectations are averaged over, twice
    #[arg(long, value_name = "P", default_value_t = 200)]
    passes: usize,
    /// Folder for the results
    #[arg(long, value_name = "OUT", default_value = "runs/theory-bias")]
    out: PathBuf,
}

/// Batches of which the variance is taken.
const VARIANCE_BATCHES: usize = 48;
const SMALLEST_BATCH: usize = 8;
/// Where SogCLR's memory is looked at more closely: the batch, γ, and passes at frozen weights.
const CLOSE_BATCH: usize = 16;
const GAMMAS: [f64; 6] = [0.9, 0.5, 0.2, 0.1, 0.05, 0.02];
const PASSES: [usize; 5] = [1, 3, 10, 30, 200];
/// Enough passes for any of the γ to forget its start.
const SETTLED: usize = 200;

impl Bias {
    pub fn run(self) -> Result<(), CliError> {
        if !self.images.is_power_of_two() || self.images < 4 * CLOSE_BATCH {
            let problem = format!("--images is {}: use a power of two from {}", self.images, 4 * CLOSE_BATCH);
            return Err(CliError::Input(problem));
        }
        if self.passes < 2 {
            return Err(CliError::Input("--passes must be at least 2".into()));
        }
        super::make_folder(&self.out)?;
        let (probe, tau) = self.world.probe(self.images)?;
        let study = BiasStudy::new(&probe, tau, self.passes, VARIANCE_BATCHES, self.world.seed);
        let plan = self.plan();
        let bar = counter("estimators", plan.len());
        let mut rows = Vec::new();
        for (estimator, batch, settled) in plan {
            let row = study.measure(estimator, batch, settled);
            rows.push(row.map_err(|error| CliError::Failed(error.to_string()))?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        self.report(&rows, tau)
    }

    /// Which estimators are measured: (estimator, batch, passes before).
    fn plan(&self) -> Vec<(EstimatorKind, usize, usize)> {
        let doubling =
            |last: usize| std::iter::successors(Some(SMALLEST_BATCH), |b| Some(2 * b)).take_while(move |b| *b <= last);
        let mut plan = Vec::new();
        for estimator in [EstimatorKind::Eq6, EstimatorKind::Ntxent] {
            plan.extend(doubling(self.images / 2).map(|batch| (estimator, batch, 0)));
        }
        for gamma in GAMMAS {
            for lagged in [true, false] {
                plan.push((EstimatorKind::Sogclr { gamma, lagged }, CLOSE_BATCH, SETTLED));
            }
        }
        let lagged = true;
        plan.extend(
            doubling(64)
                .filter(|batch| *batch != CLOSE_BATCH)
                .map(|batch| (EstimatorKind::Sogclr { gamma: 0.1, lagged }, batch, SETTLED)),
        );
        for gamma in [0.5, 0.1] {
            let passes = PASSES.into_iter().filter(|passes| *passes != SETTLED);
            plan.extend(passes.map(|passes| (EstimatorKind::Sogclr { gamma, lagged }, CLOSE_BATCH, passes)));
        }
        plan
    }

    fn report(&self, rows: &[BiasRow], tau: f64) -> Result<(), CliError> {
        let cell = |value: f64| format!("{value:.4}");
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                let settled = if matches!(row.estimator, EstimatorKind::Sogclr { .. }) {
                    row.settled.to_string()
                } else {
                    "–".into()
                };
                let numbers =
                    [row.bias_v1, row.bias_v2, row.noise, row.cosine_v1, row.cosine_v2, row.variance].map(cell);
                [vec![row.estimator.label(), row.batch.to_string(), settled], numbers.to_vec()].concat()
            })
            .collect();
        let header =
            ["estimator", "batch", "passes", "bias V1", "bias V2", "noise", "cosine V1", "cosine V2", "variance"];
        let text = table(&header, &cells);
        println!("{text}");
        let csv: String = std::iter::once(header.map(|name| name.replace(' ', "_").to_lowercase()).join(","))
            .chain(cells.iter().map(|row| row.join(",")))
            .map(|line| line + "\n")
            .collect();

        let of = |wanted: EstimatorKind, settled: usize| -> Vec<&BiasRow> {
            let mut found: Vec<&BiasRow> =
                rows.iter().filter(|row| row.estimator == wanted && row.settled == settled).collect();
            found.sort_by_key(|row| row.batch);
            found
        };
        let by_batch = |rows: &[&BiasRow], bias: fn(&BiasRow) -> f64| -> Vec<(f64, f64)> {
            rows.iter().map(|row| (row.batch as f64, bias(row))).collect()
        };
        let eq6 = by_batch(&of(EstimatorKind::Eq6, 0), |row| row.bias_v1);
        let ntxent = by_batch(&of(EstimatorKind::Ntxent, 0), |row| row.bias_v1);
        let lagged = |gamma: f64| EstimatorKind::Sogclr { gamma, lagged: true };
        let sogclr = by_batch(&of(lagged(0.1), SETTLED), |row| row.bias_v2);
        let slope = log_slope(&eq6);
        let series = vec![
            Series::new(format!("eq. (6) against V1, slope {:.2}", slope.unwrap_or(f64::NAN)), eq6.clone()),
            Series::new("NT-Xent against V1", ntxent),
            Series::new(format!("SogCLR γ=0.1, {SETTLED} passes, against V2"), sogclr),
        ];
        let batches = Chart {
            title: "Bias of the gradient against the batch",
            x: "batch",
            y: "‖E[m] − ∇F‖ / ‖∇F‖",
            is_log_x: true,
            is_log_y: true,
            series,
        };
        // SogCLR at γ is predicted to be like eq. (6) at B(2 − γ)/γ.
        let predicted = GAMMAS.iter().filter_map(|&gamma| {
            let row = of(lagged(gamma), SETTLED).into_iter().find(|row| row.batch == CLOSE_BATCH)?;
            Some((CLOSE_BATCH as f64 * (2.0 - gamma) / gamma, row.bias_v2))
        });
        let memory = Chart {
            title: "SogCLR at batch 16 for several γ, drawn at its effective batch B(2 − γ)/γ",
            x: "batch, or effective batch",
            y: "‖E[m] − ∇F‖ / ‖∇F‖",
            is_log_x: true,
            is_log_y: true,
            series: vec![
                Series::new("eq. (6) against V1", eq6),
                Series::new("SogCLR, B = 16, against V2", predicted.collect()),
            ],
        };
        let passes = |gamma: f64| {
            let mut points: Vec<(f64, f64)> = rows
                .iter()
                .filter(|row| row.estimator == lagged(gamma) && row.batch == CLOSE_BATCH)
                .map(|row| (row.settled as f64, row.bias_v2))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series::new(format!("SogCLR γ={gamma}, B = 16, against V2"), points)
        };
        let time = Chart {
            title: "Bias against passes over the data at frozen weights",
            x: "passes",
            y: "‖E[m] − ∇F‖ / ‖∇F‖",
            is_log_x: true,
            is_log_y: true,
            series: vec![passes(0.5), passes(0.1)],
        };
        let document = json!({
            "images": self.images, "augmentations": self.world.augmentations, "temperature": tau,
            "passes": self.passes, "seed": self.world.seed, "run": self.world.run.as_deref().map(folder_name), "slope_eq6": slope, "rows": rows,
        });
        write_results(
            &self.out,
            &document,
            &[
                ("bias.md", text + "\n"),
                ("bias.csv", csv),
                ("bias-batch.svg", batches.svg()),
                ("bias-gamma.svg", memory.svg()),
                ("bias-passes.svg", time.svg()),
            ],
            "bias.json",
        )?;
        if let Some(slope) = slope {
            println!("\neq. (6): bias ∝ B^{slope:.2}");
        }
        println!("results: {}/bias.{{md,csv,json}} and bias-*.svg", self.out.display());
        Ok(())
    }
}
