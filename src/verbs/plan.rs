//! `sogclr plan`: what this machine can train in the time there is.

use crate::error::CliError;
use crate::options::RunOptions;
use crate::output::{note, say};
use crate::summary::{about, describe, time_told, warn_of};
use clap::Args;
use serde_json::json;
use sogclr::config::{Overrides, RunConfig};
use sogclr::data::Dataset;
use sogclr::estimate::{Candidate, Forecast, Plan};
use sogclr::report::table;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Choose encoder, image size, batch and epochs for the time there is, in under a minute.
///
/// Measures a few encoders and sizes on your images, and proposes the strongest that sees each of them often enough, with the
/// reason for every setting, the predicted end and the command. With --epochs it tells how long that run takes. What you name
/// (--encoder, --image-size, --batch) stays as it is.
#[derive(Args)]
#[command(args_override_self = true)]
#[command(
    after_help = "Examples:\n  sogclr plan photos/ --hours 1\n  sogclr plan photos/ --encoder resnet50 --epochs 100"
)]
pub struct PlanVerb {
    #[command(flatten)]
    options: RunOptions,
    /// Hours of training
    #[arg(long, value_name = "H", conflicts_with = "epochs", value_parser = hours)]
    hours: Option<f64>,
    /// Print JSON in place of tables
    #[arg(long)]
    json: bool,
}

/// Hours that a run may take.
pub fn hours(text: &str) -> Result<f64, String> {
    let hours = text.parse::<f64>().ok().filter(|hours| *hours > 0.0 && *hours <= 1e5);
    hours.ok_or_else(|| "hours are a number above 0, such as 0.5".into())
}

const USUAL_HOURS: f64 = 3.0;

impl PlanVerb {
    pub fn run(self) -> Result<(), CliError> {
        let overrides = self.options.overrides()?;
        let (config, data) = RunConfig::open(&overrides)?;
        describe(&data);
        warn_of(&data);
        if overrides.has("train.epochs") && self.hours.is_none() {
            let forecast = Forecast::measure(&config, &data.train)?;
            if self.json {
                say!("{}", json!({ "seconds": forecast.seconds(), "images_per_s": forecast.speed() }));
            } else {
                time_told(&config, &forecast).iter().for_each(|line| say!("{line}"));
                say!("predicted end, if begun now: {}", clock_after(forecast.seconds()));
            }
            return Ok(());
        }
        let hours = self.hours.unwrap_or(USUAL_HOURS);
        let plan = make(&data, &overrides, hours)?;
        match self.json {
            true => say!("{}", serde_json::to_string_pretty(&document(&plan)).expect("plain data")),
            false => show(&plan, hours, self.options.data.as_deref()),
        }
        Ok(())
    }
}

/// The plan for so many hours; says what it measures.
pub fn make(data: &Dataset, overrides: &Overrides, hours: f64) -> Result<Plan, CliError> {
    note!("measuring encoders and sizes on your images");
    let told = |it: &Candidate| note!("  {} at {} pixels: {:.1} images/s", name(it), size(it), it.forecast.speed());
    Ok(Plan::make(data, overrides, 3600.0 * hours, told)?)
}

fn name(candidate: &Candidate) -> String {
    candidate.config.encoder.spec().name().to_string()
}

fn size(candidate: &Candidate) -> usize {
    candidate.config.augment.views[0].size
}

fn document(plan: &Plan) -> serde_json::Value {
    let candidates: Vec<_> = plan
        .candidates
        .iter()
        .map(|it| {
            json!({
                "encoder": name(it),
                "image_size": size(it),
                "batch": it.config.train.batch,
                "images_per_s": it.forecast.speed(),
                "data_wait": it.forecast.waited,
                "memory_gb": it.memory_gb,
                "epochs": it.epochs,
            })
        })
        .collect();
    json!({ "candidates": candidates, "chosen": plan.chosen, "seconds": plan.seconds, "config": plan.config })
}

fn show(plan: &Plan, hours: f64, data: Option<&Path>) {
    let title = format!("epochs in {}", about(3600.0 * hours));
    let rows = plan.candidates.iter().enumerate().map(|(index, it)| {
        vec![
            format!("{}{}", name(it), if index == plan.chosen { " *" } else { "" }),
            size(it).to_string(),
            it.config.train.batch.to_string(),
            format!("{:.1}", it.forecast.speed()),
            format!("{:.0}%", 100.0 * it.forecast.waited),
            it.memory_gb.map_or("?".into(), |gb| format!("{gb:.1} GB")),
            it.epochs.to_string(),
        ]
    });
    let header = ["encoder", "pixels", "batch", "images/s", "data wait", "memory, at least", &title];
    say!("{}\n", table(&header, &rows.collect::<Vec<_>>()));
    let reasons = plan.reasons.iter().map(|it| vec![it.key.to_owned(), it.value.clone(), it.why.clone()]);
    say!("{}\n", table(&["proposed (*)", "value", "why"], &reasons.collect::<Vec<_>>()));
    say!("takes about {}; predicted end, if begun now: {}", about(plan.seconds), clock_after(plan.seconds));
    let train = &plan.config.train;
    let data = data.map_or(String::new(), |path| format!("{} ", path.display()));
    let chosen = &plan.candidates[plan.chosen];
    say!(
        "  sogclr pretrain {data}--encoder {} --image-size {} --batch {} --epochs {} --out RUN",
        name(chosen),
        size(chosen),
        train.batch,
        train.epochs
    );
}

/// The time of day in so many seconds.
fn clock_after(seconds: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    let minutes = ((now + seconds) / 60.0) as u64;
    let days = minutes / 1440 - (now / 86_400.0) as u64;
    let day = match days {
        0 => String::new(),
        1 => " tomorrow".into(),
        days => format!(" in {days} days"),
    };
    format!("{:02}:{:02} UTC{day}", minutes / 60 % 24, minutes % 60)
}
