//! `sogclr advise`: which augmentation suits the images.

use crate::error::CliError;
use crate::options::RunOptions;
use crate::output::{note, say};
use crate::summary::{about, describe, thousands, warn_of};
use clap::Args;
use serde_json::json;
use sogclr::advise::{Advice, AdviseError, Finding, advise};
use sogclr::augment::Keep;
use sogclr::config::RunConfig;
use sogclr::report::{accuracy_cell, table};
use std::time::Instant;

/// Find out what augmentation must not destroy: short races without colour changes, flips, small crops or blur.
///
/// Trains a small encoder for a few minutes with each, and prints one table: linear and nearest-neighbour accuracy on a fifth of the
/// images where there are labels (training sees those images without them), otherwise scores without labels. Then the command
/// with the settings that won, if one did by more than chance.
#[derive(Args)]
#[command(args_override_self = true)]
#[command(
    after_help = "Example:\n  sogclr advise photos/ --minutes 10\n\nSee docs/augmentation.md for what the scores can and cannot tell."
)]
pub struct Advise {
    #[command(flatten)]
    options: RunOptions,
    /// Minutes that it may take, on an idle machine
    #[arg(long, value_name = "M", default_value_t = 10.0)]
    minutes: f64,
    /// Print JSON in place of a table
    #[arg(long)]
    json: bool,
}

/// The usual augmentation, or what is kept.
fn name(kept: &[Keep]) -> String {
    let word = |keep: &Keep| Keep::NAMES.iter().find(|(_, it)| it == keep).map_or("", |(name, _)| name);
    match kept {
        [] => "as usual".into(),
        kept => kept.iter().map(word).collect::<Vec<_>>().join(","),
    }
}

impl Advise {
    pub fn run(self) -> Result<(), CliError> {
        if !(self.minutes > 0.0 && self.minutes <= 1e5) {
            return Err(CliError::Input(format!("--minutes is {}: it must be above 0", self.minutes)));
        }
        let overrides = self.options.overrides()?;
        let (_, data) = RunConfig::open(&overrides)?;
        describe(&data);
        warn_of(&data);
        let (began, mut done) = (Instant::now(), 0);
        let advice = advise(&data, &overrides, 60.0 * self.minutes, |count, seconds, kept| {
            done += 1;
            note!("[{done}/{count}] keep {}, about {}", name(kept), about(seconds));
        })?;
        if self.json {
            say!("{}", serde_json::to_string_pretty(&document(&advice)).expect("plain data"));
            return Ok(());
        }
        say!(
            "{} images, {} pixels, {} epochs of a small encoder each, {} in all:\n",
            thousands(advice.images),
            advice.size,
            advice.epochs,
            about(began.elapsed().as_secs_f64())
        );
        say!("{}\n", rows(&advice));
        let data = self.options.data.as_ref().map_or(String::new(), |path| format!("{} ", path.display()));
        match (advice.best().kept.as_slice(), advice.has_labels) {
            ([], true) => say!("nothing was better than the usual augmentation by more than chance: leave it as it is"),
            ([], false) => {
                say!("without labels nothing showed: if your task is one of colour or detail, say so with --keep")
            }
            (kept, true) => say!("  sogclr pretrain {data}--keep {} --out RUN", name(kept)),
            (kept, false) => {
                say!("  sogclr pretrain {data}--keep {} --out RUN", name(kept));
                say!("without labels this is a guess: it cannot see whether your task needs colour");
            }
        }
        Ok(())
    }
}

fn rows(advice: &Advice) -> String {
    let best = advice.best().kept.clone();
    let row = |it: &Finding| {
        let accuracies = it.labelled.iter().flatten().map(accuracy_cell);
        let mark = if it.kept == best { " *" } else { "" };
        let rest = [accuracy_cell(&it.rotation), format!("{:.1}", it.rankme)];
        std::iter::once(name(&it.kept) + mark).chain(accuracies).chain(rest).collect::<Vec<_>>()
    };
    let labelled: &[&str] =
        if advice.has_labels { &["linear top-1 % (95 % interval)", "kNN top-1 % (95 % interval)"] } else { &[] };
    let header = [&["keep (* best)"], labelled, &["rotation % (no labels)", "RankMe (no labels)"]].concat();
    table(&header, &advice.findings.iter().map(row).collect::<Vec<_>>())
}

fn document(advice: &Advice) -> serde_json::Value {
    let rows: Vec<_> = advice
        .findings
        .iter()
        .map(|it| {
            let [linear, knn] = [0, 1].map(|index| it.labelled.map(|both| both[index]));
            json!({ "keep": name(&it.kept), "linear": linear, "knn": knn, "rotation": it.rotation, "rankme": it.rankme })
        })
        .collect();
    let [best, blind] = [advice.has_labels, false].map(|labels| name(&advice.best_by(labels).kept));
    json!({ "rows": rows, "best": best, "best_without_labels": blind, "epochs": advice.epochs, "images": advice.images })
}

impl From<AdviseError> for CliError {
    fn from(error: AdviseError) -> Self {
        match error {
            AdviseError::Train(error) => error.into(),
            AdviseError::Eval(error) => error.into(),
        }
    }
}
