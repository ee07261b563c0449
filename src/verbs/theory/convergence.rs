//! `sogclr theory convergence`.

use super::saved::Saved;
use super::{World, folder_name, make_folder, write_results};
use crate::charts::{Chart, Series};
use crate::error::CliError;
use crate::output::say;
use crate::progress::Counter;
use clap::Args;
use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};
use sogclr::report::table;
use sogclr::theory::{Descent, EstimatorKind, LinearProblem, Point, first_below, log_slope};
use std::path::PathBuf;

/// Follow the exact gradient of the global objective along training.
///
/// Freezes the encoder, takes its features of N images with M augmentations each, whitened to 8 directions, and trains a
/// linear layer on top with SimCLR's estimators (eq. 6 and NT-Xent) and with SogCLR, for several batches and numbers of steps
/// T: the momentum form of Algorithm 1 with the theorems' step sizes, beta = sqrt(B/T), gamma = sqrt(n/T),
/// eta = c min(beta, gamma B/n), and eq. 6 also by Theorem 1's plain update (7) with the same eta; the layer is scaled back to
/// its first length after every step, on which F does not depend.
/// Reports ‖∇F‖² of both versions of the objective as the mean over the run, which the theorems bound, and over its last
/// tenth; how many steps it takes to come down to a tenth of the start (the parallel speed-up of Theorem 2); and how near an
/// embedding came to 0, where F is not smooth.
///
/// The encoder is that of --run, or untrained. OUT gets convergence.csv, curves.csv, convergence.json and charts. Stopped, the
/// same command goes on.
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
    /// Steps of a run, one or several separated by commas
    #[arg(long, value_name = "T", value_delimiter = ',', default_value = "12500,50000,200000")]
    steps: Vec<usize>,
    /// c of the step size
    #[arg(long, value_name = "C", default_value_t = 0.5)]
    rate: f64,
    /// Seeds of each run
    #[arg(long, value_name = "K", default_value_t = 10)]
    seeds: u64,
    /// Folder for the results
    #[arg(long, value_name = "OUT", default_value = "runs/theory-convergence")]
    out: PathBuf,
}

/// Looks at the exact gradient along a run; a point of a curve is the mean of some of them.
const LOOKS: usize = 1000;
const LOOKS_PER_POINT: usize = 20;
/// Share of the first ‖∇F‖² that counts as reached.
const LEVEL: f64 = 0.1;
/// Directions of the features that are kept, and values that the layer makes of them.
const COMPONENTS: usize = 8;
const OUTPUT: usize = 4;
const PLAIN: &str = "eq. (6) by (7)";
const NAMES: [&str; 4] = [PLAIN, "eq. (6)", "NT-Xent", "SogCLR"];

/// What one run came to.
#[derive(Serialize)]
struct Summary {
    name: &'static str,
    batch: usize,
    steps: usize,
    seed: u64,
    /// F of V1 at the end.
    objective: f64,
    /// ‖∇F‖², the mean of all looks and of the last tenth.
    mean_v1: f64,
    mean_v2: f64,
    end_v1: f64,
    end_v2: f64,
    /// Steps until ‖∇F‖² of V2 is a tenth of its start.
    steps_to_level: Option<usize>,
    /// The least ‖h‖ of any look, and of the last tenth.
    least_norm: f64,
    end_norm: f64,
    #[serde(skip)]
    curve: Vec<Point>,
}

impl Summary {
    fn new(name: &'static str, descent: &Descent, points: Vec<Point>) -> Self {
        let mean = |points: &[Point], of: fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
        let least = |points: &[Point]| points.iter().map(|p| p.least_norm).fold(f64::INFINITY, f64::min);
        let end = &points[points.len() - points.len().div_ceil(10)..];
        let curve = points.chunks(LOOKS_PER_POINT).map(|points| Point {
            step: points[0].step,
            objective: mean(points, |p| p.objective),
            gradient_v1: mean(points, |p| p.gradient_v1),
            gradient_v2: mean(points, |p| p.gradient_v2),
            least_norm: least(points),
        });
        Self {
            name,
            batch: descent.batch,
            steps: descent.steps,
            seed: descent.seed,
            objective: points[points.len() - 1].objective,
            mean_v1: mean(&points, |p| p.gradient_v1),
            mean_v2: mean(&points, |p| p.gradient_v2),
            end_v1: mean(end, |p| p.gradient_v1),
            end_v2: mean(end, |p| p.gradient_v2),
            steps_to_level: first_below(&points, LEVEL * points[0].gradient_v2),
            least_norm: least(&points),
            end_norm: least(end),
            curve: curve.collect(),
        }
    }
}

impl Convergence {
    pub fn run(self) -> Result<(), CliError> {
        let wrong = |problem: String| Err(CliError::Input(problem));
        if let Some(batch) = self.batches.iter().find(|batch| !(2..=self.images).contains(batch)) {
            return wrong(format!("--batches has {batch}: use 2 to {}, the number of --images", self.images));
        }
        if self.steps.contains(&0) {
            return wrong("--steps has 0: use at least 1".into());
        }
        if self.seeds == 0 {
            return wrong("--seeds is 0: use at least 1".into());
        }
        if !(self.rate > 0.0 && self.rate.is_finite()) {
            return wrong(format!("--rate is {}: use a positive number", self.rate));
        }
        let (features, temperature) = self.world.features(self.images)?;
        make_folder(&self.out)?;
        let mut runs = Vec::new();
        for &steps in &self.steps {
            for name in NAMES {
                for &batch in &self.batches {
                    let seeds = self.world.seed..self.world.seed + self.seeds;
                    let is_plain = name == PLAIN;
                    let descent = |seed| Descent { batch, steps, rate: self.rate, temperature, is_plain, seed };
                    runs.extend(seeds.map(|seed| (name, descent(seed))));
                }
            }
        }
        let bar = Counter::new("runs", runs.len());
        let parts = Saved::open(&self.out, &self.settings(temperature), &features)?;
        let summaries: Result<Vec<Summary>, CliError> = runs
            .into_par_iter()
            .enumerate()
            .map(|(number, (name, descent))| {
                let (_, gamma, _) = descent.step_sizes(self.images);
                let kind = match name {
                    "SogCLR" => EstimatorKind::Sogclr { gamma, lagged: true },
                    "NT-Xent" => EstimatorKind::Ntxent,
                    PLAIN | "eq. (6)" => EstimatorKind::Eq6,
                    other => unreachable!("{other} is none of the names"),
                };
                let points = parts.part(number, || {
                    let mut problem = LinearProblem::new(&features, COMPONENTS, OUTPUT, descent.seed);
                    descent.run(&mut problem, kind, LOOKS).map_err(|error| CliError::Failed(error.to_string()))
                });
                bar.inc(1);
                Ok(Summary::new(name, &descent, points?))
            })
            .collect();
        drop(bar);
        self.report(&summaries?, temperature)?;
        parts.finish()
    }

    fn settings(&self, temperature: f64) -> Value {
        let World { augmentations, run, seed, .. } = &self.world;
        json!({
            "images": self.images, "augmentations": augmentations, "run": run.as_deref().map(folder_name),
            "temperature": temperature, "directions": COMPONENTS, "outputs": OUTPUT, "looks": LOOKS,
            "batches": self.batches, "steps": self.steps, "rate": self.rate, "seed": seed, "seeds": self.seeds,
            "level": LEVEL,
        })
    }

    fn report(&self, all: &[Summary], temperature: f64) -> Result<(), CliError> {
        let text = table_of(all);
        say!("{text}");
        let longest = *self.steps.iter().max().expect("there are steps");
        let speed_up = NAMES.map(|name| {
            let points = cells(all).into_iter().filter(|of| of[0].name == name && of[0].steps == longest);
            let median = |of: &[Summary]| Some(spread(&steps_to_level(of)?).1);
            let points: Vec<_> = points.filter_map(|of| Some((of[0].batch as f64, median(of)?))).collect();
            let alike: Vec<_> = points.iter().map(|&(batch, steps)| (batch, steps, steps)).collect();
            let slope = log_slope(&alike).map_or(String::new(), |(slope, _)| format!(", slope {slope:.2}"));
            Series::new(format!("{name}{slope}"), points)
        });
        let speed_up = Chart {
            title: "Steps until ‖∇F‖² (V2) is a tenth of its start",
            x: "batch",
            y: "steps",
            is_log_x: true,
            is_log_y: true,
            series: speed_up.to_vec(),
        };
        let along = |title, of: fn(&Point) -> f64| {
            let is_drawn = |name: &str| ["eq. (6)", "SogCLR"].contains(&name);
            let shown = |run: &&Summary| run.steps == longest && run.seed == self.world.seed && is_drawn(run.name);
            let series = all.iter().filter(shown).map(|run| {
                let points = run.curve.iter().map(|point| (point.step as f64, of(point))).collect();
                Series::new(format!("{}, B = {}", run.name, run.batch), points)
            });
            Chart { title, x: "step", y: "‖∇F‖²", is_log_x: false, is_log_y: true, series: series.collect() }.svg()
        };
        let by_steps = ["eq. (6)", "SogCLR"].into_iter().flat_map(|name| {
            self.batches.iter().map(move |&batch| {
                let points = cells(all).into_iter().filter(|of| of[0].name == name && of[0].batch == batch);
                let points = points.map(|of| (of[0].steps as f64, spread(&values(of, |run| run.end_v2)).1));
                Series::new(format!("{name}, B = {batch}"), points.collect())
            })
        });
        let by_steps = Chart {
            title: "‖∇F‖² of V2 in the last tenth of the run, median of the seeds",
            x: "T, steps of the run",
            y: "‖∇F‖²",
            is_log_x: true,
            is_log_y: true,
            series: by_steps.collect(),
        };
        let mut document = self.settings(temperature);
        document["runs"] = json!(all);
        let files = [
            ("convergence.md", text + "\n"),
            ("convergence.csv", csv(all)),
            ("curves.csv", curves_csv(all, longest, self.world.seed)),
            ("convergence-v1.svg", along("‖∇F‖² of V1 along training", |p| p.gradient_v1)),
            ("convergence-v2.svg", along("‖∇F‖² of V2 along training", |p| p.gradient_v2)),
            ("convergence-steps.svg", by_steps.svg()),
            ("speed-up.svg", speed_up.svg()),
        ];
        write_results(&self.out, &document, &files, "convergence.json")?;
        say!(
            "results: {0}/convergence.{{md,csv,json}}, curves.csv, convergence-*.svg, speed-up.svg",
            self.out.display()
        );
        Ok(())
    }
}

/// The runs that differ only in their seed, in order.
fn cells(all: &[Summary]) -> Vec<&[Summary]> {
    all.chunk_by(|a, b| (a.name, a.batch, a.steps) == (b.name, b.batch, b.steps)).collect()
}

fn values(runs: &[Summary], of: fn(&Summary) -> f64) -> Vec<f64> {
    runs.iter().map(of).collect()
}

/// The steps to the level; `None` if a run does not reach it.
fn steps_to_level(runs: &[Summary]) -> Option<Vec<f64>> {
    runs.iter().map(|run| run.steps_to_level.map(|steps| steps as f64)).collect()
}

/// Least, median and largest of the seeds.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    (sorted[0], 0.5 * (low + high), sorted[sorted.len() - 1])
}

fn table_of(all: &[Summary]) -> String {
    let cell = |values: &[f64], scale: f64, digits: usize| {
        let ((least, median, largest), mean) = (spread(values), values.iter().sum::<f64>() / values.len() as f64);
        let [mean, median, least, largest] =
            [mean, median, least, largest].map(|value| format!("{:.digits$}", scale * value));
        format!("{mean}; {median} ({least}–{largest})")
    };
    let gradient = |runs: &[Summary], of: fn(&Summary) -> f64| cell(&values(runs, of), 1e4, 1);
    let rows: Vec<Vec<String>> = cells(all)
        .into_iter()
        .map(|runs| {
            let Summary { name, batch, steps, .. } = runs[0];
            let steps_to = steps_to_level(runs).map_or("–".into(), |steps| cell(&steps, 1.0, 0));
            vec![
                steps.to_string(),
                name.into(),
                batch.to_string(),
                gradient(runs, |run| run.mean_v1),
                gradient(runs, |run| run.mean_v2),
                gradient(runs, |run| run.end_v1),
                gradient(runs, |run| run.end_v2),
                steps_to,
                format!("{:.3}", spread(&values(runs, |run| run.least_norm)).0),
            ]
        })
        .collect();
    let header = ["T", "estimator", "batch", "mean V1", "mean V2", "end V1", "end V2", "steps to a tenth", "least ‖h‖"];
    format!("‖∇F‖² in units of 10⁻⁴: mean of the seeds; median (least–largest)\n\n{}", table(&header, &rows))
}

fn csv(all: &[Summary]) -> String {
    let columns =
        "steps,estimator,batch,seed,objective,mean_v1,mean_v2,end_v1,end_v2,steps_to_level,least_norm,end_norm";
    let mut text = format!("{columns}\n");
    for run in all {
        let Summary {
            name, batch, steps, seed, objective, mean_v1, mean_v2, end_v1, end_v2, least_norm, end_norm, ..
        } = run;
        let steps_to = run.steps_to_level.map_or(String::new(), |steps| steps.to_string());
        text += &format!(
            "{steps},{name},{batch},{seed},{objective},{mean_v1:e},{mean_v2:e},{end_v1:e},{end_v2:e},{steps_to},{least_norm:e},{end_norm:e}\n"
        );
    }
    text
}

/// The curves of the longest runs of one seed.
fn curves_csv(all: &[Summary], steps: usize, seed: u64) -> String {
    let mut text = String::from("estimator,batch,step,objective,gradient_v1,gradient_v2,least_norm\n");
    for run in all.iter().filter(|run| run.steps == steps && run.seed == seed) {
        for Point { step, objective, gradient_v1, gradient_v2, least_norm } in &run.curve {
            let values = format!("{step},{objective},{gradient_v1:e},{gradient_v2:e},{least_norm:e}");
            text += &format!("{},{},{values}\n", run.name, run.batch);
        }
    }
    text
}
