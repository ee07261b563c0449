//! `sogclr theory bias`.

use super::saved::Saved;
use super::{World, folder_name, write_results};
use crate::charts::{Chart, Series};
use crate::error::CliError;
use crate::output::say;
use crate::progress::Counter;
use clap::Args;
use serde_json::{Value, json};
use sogclr::loss::LossError;
use sogclr::report::table;
use sogclr::theory::{BiasRow, BiasStudy, EstimatorKind, effective_batch, log_slope};
use std::path::PathBuf;

/// Compare what mini-batches estimate with the gradient of the global objective.
///
/// Takes N images with M augmentations each as the whole world, so that the objective (V1 and V2) and its gradient are exact,
/// and measures at frozen weights: bias, variance and cosine of SimCLR's estimators (eq. 6, which leaves the positive out, and
/// NT-Xent) for batches from 8 up, and of SogCLR's, with u_{t−1} as in Algorithm 1 and with the fresh u_t, for several γ once u has
/// settled, and for a few passes after u began. Takes about twenty minutes on two cores.
///
/// The encoder is that of --run, or untrained. OUT gets bias.csv, bias.json and charts. Stopped, the same command goes on.
#[derive(Args)]
#[command(after_help = "Example:\n  sogclr theory bias --run runs/demo/sogclr --out runs/bias")]
pub struct Bias {
    #[command(flatten)]
    world: World,
    /// Images of the problem; a power of two
    #[arg(long, value_name = "N", default_value_t = 512)]
    images: usize,
    /// Passes over the images that an expectation is averaged over, eight times
    #[arg(long, value_name = "P", default_value_t = 100)]
    passes: usize,
    /// Folder for the results
    #[arg(long, value_name = "OUT", default_value = "runs/theory-bias")]
    out: PathBuf,
}

const BATCHES: std::ops::RangeInclusive<usize> = 8..=512;
/// Where SogCLR's memory is looked at more closely: the batch, γ, and passes since u began.
const CLOSE_BATCH: usize = 16;
const GAMMAS: [f64; 6] = [0.9, 0.5, 0.2, 0.1, 0.05, 0.02];
const PASSES: [usize; 4] = [1, 3, 10, 30];
/// γ and batches of SogCLR against the batch.
const GAMMA: f64 = 0.1;
const SMALL_BATCHES: [usize; 4] = [8, 16, 32, 64];
/// γ against passes.
const PASSING_GAMMAS: [f64; 2] = [0.5, 0.1];

impl Bias {
    pub fn run(self) -> Result<(), CliError> {
        if !self.images.is_power_of_two() || self.images < 4 * CLOSE_BATCH {
            let problem = format!("--images is {}: use a power of two from {}", self.images, 4 * CLOSE_BATCH);
            return Err(CliError::Input(problem));
        }
        if self.passes == 0 {
            return Err(CliError::Input("--passes must be at least 1".into()));
        }
        let (probe, tau) = self.world.probe(self.images)?;
        super::make_folder(&self.out)?;
        let study = BiasStudy::new(&probe, tau, self.passes, self.world.seed);
        let failed = |error: LossError| CliError::Failed(error.to_string());
        let settled = self.settled();
        let passing = PASSING_GAMMAS.into_iter().flat_map(of_gamma);
        let bar = Counter::new("estimators", settled.len() + 2 * PASSING_GAMMAS.len());
        let parts = Saved::open(&self.out, &self.settings(&study), &probe.problem())?;
        let mut rows: Vec<BiasRow> = Vec::new();
        for (number, (estimator, batch)) in settled.into_iter().enumerate() {
            rows.push(parts.part(number, || study.settled(estimator, batch).map_err(failed))?);
            bar.inc(1);
        }
        let first = rows.len();
        for (number, estimator) in passing.enumerate() {
            let compute = || study.after(estimator, CLOSE_BATCH, &PASSES).map_err(failed);
            rows.extend(parts.part(first + number, compute)?);
            bar.inc(1);
        }
        drop(bar);
        self.report(&study, &rows)?;
        parts.finish()
    }

    fn settings(&self, study: &BiasStudy) -> Value {
        let World { augmentations, seed, run, .. } = &self.world;
        json!({
            "images": self.images, "augmentations": augmentations, "temperature": study.tau, "passes": self.passes,
            "seed": seed, "run": run.as_deref().map(folder_name),
        })
    }

    /// Which estimators are measured at which batch once they have settled.
    fn settled(&self) -> Vec<(EstimatorKind, usize)> {
        let batches = || {
            let doubling = std::iter::successors(Some(*BATCHES.start()), |batch| Some(2 * batch));
            doubling.take_while(|batch| BATCHES.contains(batch) && *batch <= self.images)
        };
        let simclr = [EstimatorKind::Eq6, EstimatorKind::Ntxent];
        let mut plan: Vec<_> = simclr.into_iter().flat_map(|kind| batches().map(move |batch| (kind, batch))).collect();
        plan.extend(GAMMAS.into_iter().flat_map(of_gamma).map(|kind| (kind, CLOSE_BATCH)));
        let others = SMALL_BATCHES.into_iter().filter(|batch| *batch != CLOSE_BATCH && *batch <= self.images / 2);
        plan.extend(others.flat_map(|batch| of_gamma(GAMMA).map(|kind| (kind, batch))));
        plan
    }

    // Long: one chart after the other, each said once.
    fn report(&self, study: &BiasStudy, rows: &[BiasRow]) -> Result<(), CliError> {
        let text = self.table(rows);
        say!("{text}");
        let settled = |wanted: EstimatorKind| {
            let mut found: Vec<&BiasRow> =
                rows.iter().filter(|row| row.estimator == wanted && row.after.is_none()).collect();
            found.sort_by_key(|row| row.batch);
            found
        };
        // (x, bias, its error)
        let point = |x: f64, bias: &sogclr::theory::Bias| bias.resolved().map(|(bias, error)| (x, bias, error));
        let against_v1 = |wanted: EstimatorKind| -> Vec<(f64, f64, f64)> {
            settled(wanted).iter().filter_map(|row| point(row.batch as f64, &row.bias_v1)).collect()
        };
        let against_v2 = |wanted: EstimatorKind| -> Vec<(f64, f64, f64)> {
            settled(wanted).iter().filter_map(|row| point(row.batch as f64, &row.bias_v2)).collect()
        };
        // Larger batches are so much of this world that they have less noise than in an endless one.
        let slope = |wanted: EstimatorKind| {
            let small = settled(wanted).into_iter().filter(|row| 8 * row.batch <= self.images);
            let points: Vec<_> = small
                .map(|row| {
                    let (bias, error) = row.bias_v1.value();
                    (row.batch as f64, bias, error)
                })
                .collect();
            log_slope(&points)
        };
        let slopes = [("eq. (6)", slope(EstimatorKind::Eq6)), ("NT-Xent", slope(EstimatorKind::Ntxent))];
        let with_slope = |(name, slope): (&str, Option<(f64, f64)>)| match slope {
            Some((slope, error)) => format!("{name} against V1, slope {slope:.2} ± {error:.2}"),
            None => format!("{name} against V1"),
        };
        let of_sogclr =
            |kind: EstimatorKind| Series::with_errors(format!("{}, against V2", kind.label()), &against_v2(kind));
        let y = "‖E[m] − ∇F‖ / ‖∇F‖, where it can be told from 0";
        let log_chart = |title: &str, x: &str, series: Vec<Series>| {
            Chart { title, x, y, is_log_x: true, is_log_y: true, series }.svg()
        };
        let (eq6, ntxent) = (against_v1(EstimatorKind::Eq6), against_v1(EstimatorKind::Ntxent));
        let mut by_batch =
            vec![Series::with_errors(with_slope(slopes[0]), &eq6), Series::with_errors(with_slope(slopes[1]), &ntxent)];
        by_batch.extend(of_gamma(GAMMA).map(of_sogclr));
        let mut by_gamma = vec![Series::with_errors("eq. (6) against V1", &eq6)];
        by_gamma.extend([true, false].map(|lagged| {
            let points = GAMMAS.iter().filter_map(|&gamma| {
                let row =
                    *settled(EstimatorKind::Sogclr { gamma, lagged }).iter().find(|row| row.batch == CLOSE_BATCH)?;
                point(effective_batch(CLOSE_BATCH, gamma, self.images), &row.bias_v2)
            });
            let u = if lagged { "u_{t−1}" } else { "u_t" };
            Series::with_errors(format!("SogCLR {u}, B = {CLOSE_BATCH}, against V2"), &points.collect::<Vec<_>>())
        }));
        let by_passes = PASSING_GAMMAS.into_iter().flat_map(of_gamma).map(|kind| {
            let of = rows.iter().filter(|row| row.estimator == kind);
            let points: Vec<_> = of.filter_map(|row| point(row.after? as f64, &row.bias_v2)).collect();
            Series::with_errors(format!("{}, against V2", kind.label()), &points)
        });
        let title = format!("SogCLR at batch {CLOSE_BATCH} for γ from 0.9 to 0.02, drawn at its effective batch");
        let files = [
            ("bias.md", text + "\n"),
            ("bias.csv", self.csv(rows)),
            ("bias-batch.svg", log_chart("Bias of the gradient against the batch", "batch", by_batch)),
            ("bias-gamma.svg", log_chart(&title, "batch, or effective batch", by_gamma)),
            ("bias-passes.svg", log_chart("Bias after passes at frozen weights", "passes", by_passes.collect())),
        ];
        let apart = study.versions_apart();
        let mut document = self.settings(study);
        document["versions_apart"] = json!(apart);
        document["slope_eq6"] = json!(slopes[0].1.map(|of| of.0));
        document["slope_ntxent"] = json!(slopes[1].1.map(|of| of.0));
        document["rows"] = json!(rows);
        write_results(&self.out, &document, &files, "bias.json")?;
        say!("\n‖∇V1 − ∇V2‖ = {apart:.4}·‖∇V1‖");
        for (name, slope) in slopes {
            if let Some((slope, error)) = slope {
                say!("{name}: bias ∝ B^({slope:.2} ± {error:.2}) up to an eighth of the images");
            }
        }
        say!("results: {}/bias.{{md,csv,json}} and bias-*.svg", self.out.display());
        Ok(())
    }

    fn table(&self, rows: &[BiasRow]) -> String {
        let bias = |bias: &sogclr::theory::Bias| match bias.resolved() {
            Some((bias, error)) => format!("{bias:.3} ± {error:.3}"),
            None => format!("< {:.3}", bias.bound()),
        };
        let passes = |row: &BiasRow| match (row.after, row.estimator) {
            (Some(after), _) => after.to_string(),
            (None, EstimatorKind::Sogclr { .. }) => "settled".into(),
            (None, _) => "–".into(),
        };
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                let variance = row.variance.map_or("–".into(), |variance| format!("{variance:.1}"));
                let shown = |cosine: Option<f64>| cosine.map_or("–".into(), |cosine| format!("{cosine:.3}"));
                let cosines = [row.cosine_v1, row.cosine_v2].map(shown);
                let [first, second] = [&row.bias_v1, &row.bias_v2].map(bias);
                let [v1, v2] = cosines;
                let noise = format!("{:.3}", row.noise);
                vec![row.estimator.label(), row.batch.to_string(), passes(row), first, second, v1, v2, noise, variance]
            })
            .collect();
        let header =
            ["estimator", "batch", "passes", "bias V1", "bias V2", "cosine V1", "cosine V2", "noise", "variance"];
        table(&header, &cells)
    }

    /// One line for every row; what does not apply is empty.
    fn csv(&self, rows: &[BiasRow]) -> String {
        let mut text = String::from(
            "estimator,gamma,u,batch,effective_batch,passes,bias_v1_squared,bias_v1_error,bias_v2_squared,bias_v2_error,\
             cosine_v1,cosine_v2,noise,variance\n",
        );
        for row in rows {
            let (name, gamma, u, effective) = match row.estimator {
                EstimatorKind::Eq6 => ("eq6", String::new(), "", String::new()),
                EstimatorKind::Ntxent => ("ntxent", String::new(), "", String::new()),
                EstimatorKind::Sogclr { gamma, lagged } => {
                    let effective = format!("{:.1}", effective_batch(row.batch, gamma, self.images));
                    ("sogclr", gamma.to_string(), if lagged { "t-1" } else { "t" }, effective)
                }
            };
            let passes = row.after.map_or(String::new(), |after| after.to_string());
            let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
            let (cosine_v1, cosine_v2) = (number(row.cosine_v1), number(row.cosine_v2));
            let variance = number(row.variance);
            let BiasRow { batch, bias_v1, bias_v2, noise, .. } = row;
            text += &format!(
                "{name},{gamma},{u},{batch},{effective},{passes},{},{},{},{},{cosine_v1},{cosine_v2},{noise},{variance}\n",
                bias_v1.squared, bias_v1.error, bias_v2.squared, bias_v2.error
            );
        }
        text
    }
}

/// SogCLR with either u.
fn of_gamma(gamma: f64) -> [EstimatorKind; 2] {
    [true, false].map(|lagged| EstimatorKind::Sogclr { gamma, lagged })
}
