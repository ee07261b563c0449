//! What the runs of a study will take, told before the first of them.

use super::Checked;
use crate::error::CliError;
use crate::output::{note, say};
use crate::progress::Counter;
use sogclr::config::RunConfig;
use sogclr::estimate::{Estimate, Speed, bytes_text, duration_text};
use sogclr::report::table;
use sogclr::train::{free_memory_gb, too_large};
use std::collections::HashMap;

/// What may begin without being asked for.
const A_DAY: f64 = 86_400.0;

/// What decides the speed of a step.
fn network(config: &RunConfig) -> String {
    let RunConfig { encoder, head, text, method, augment, train, .. } = config;
    let sizes: Vec<_> = augment.views.iter().map(|group| (group.count, group.size)).collect();
    let kind = (method.name(), train.device, config.eval_size());
    format!("{encoder:?} {head:?} {text:?} {kind:?} {sizes:?}")
}

/// Measures a step of every network among `runs` (title and run), prints what each run will take, and refuses what would take
/// longer than a day unless that is agreed to.
pub fn tell(runs: &[(String, &Checked)], is_agreed: bool) -> Result<(), CliError> {
    for (title, run) in runs {
        if let Some(problem) = free_memory_gb().and_then(|free| too_large(&run.cell.config, free)) {
            return Err(CliError::Input(format!("{title}: {problem} (--set KEY=VALUE sets it for every run)")));
        }
    }
    let mut speeds: HashMap<String, Speed> = HashMap::new();
    let bar = Counter::new("measuring a step of each network", runs.len());
    for (_, run) in runs {
        let config = &run.cell.config;
        if let std::collections::hash_map::Entry::Vacant(entry) = speeds.entry(network(config)) {
            entry.insert(Speed::measure(config)?);
        }
        bar.inc(1);
    }
    drop(bar);
    let estimates: Vec<Estimate> = runs
        .iter()
        .map(|(_, Checked { cell, train, test, .. })| {
            speeds[&network(&cell.config)].of_run(&cell.config, cell.measure, *train, *test)
        })
        .collect();
    let row = |title: &str, found: &Estimate| {
        let Estimate { training, evaluation, disk } = *found;
        vec![title.to_owned(), duration_text(training), duration_text(evaluation), bytes_text(disk)]
    };
    let total = estimates.iter().fold(Estimate::default(), |sum, one| sum + *one);
    let mut rows: Vec<_> = runs.iter().zip(&estimates).map(|((title, _), found)| row(title, found)).collect();
    rows.push(row(&format!("all {} runs", runs.len()), &total));
    say!("estimate, from a step of a few images on this machine:\n");
    say!("{}\n", table(&["run", "training", "evaluation", "disk"], &rows));
    match total.seconds() > A_DAY && !is_agreed {
        false => {
            note!("about {}; stop any time, the same command goes on", duration_text(total.seconds()));
            Ok(())
        }
        true => Err(CliError::Input(format!(
            "this takes about {} here: choose runs with --only, or agree with --yes; nothing was begun",
            duration_text(total.seconds())
        ))),
    }
}
