//! `sogclr check`: what is wrong with data, before hours are spent on it.

use crate::error::CliError;
use crate::options::RunOptions;
use crate::output::{note, refuse_existing_file, say};
use crate::progress::Counter;
use clap::Args;
use sogclr::config::{Overrides, RunConfig};
use sogclr::data::{DataConfig, Dataset};
use sogclr::inspect::{Flaw, Loading, Report, inspect, suspects_sheet};
use sogclr::report::table;
use sogclr::storage::{StorageError, write_atomic};
use std::path::PathBuf;

/// Findings of a kind that are named on the terminal.
const NAMED: usize = 3;

/// Look at every image before training: what is broken, there twice, leaks into the test images, or loads too slowly.
///
/// Finds images that cannot be read or are damaged, of one colour, tiny or strips; duplicates, exact and near (stored again,
/// resized, brighter), also across training and test images; classes of very different sizes; and whether loading keeps up with
/// the encoder that `pretrain` with the same flags would train. Writes to OUT: check.json, suspicious.png to look at, and
/// quarantine.txt, which names what to leave out: `sogclr pretrain --quarantine OUT/quarantine.txt`. Nothing in DATA is changed.
///
/// The exit code is 0 whatever was found, and 2 if DATA cannot be read at all. docs/check.md has the rules.
#[derive(Args)]
#[command(args_override_self = true)]
#[command(after_help = "Example:\n  sogclr check photos/ --out check")]
pub struct Check {
    #[command(flatten)]
    options: RunOptions,
    /// Folder for what is found
    #[arg(long, value_name = "OUT", default_value = "check")]
    out: PathBuf,
    /// Print check.json
    #[arg(long)]
    json: bool,
}

impl Check {
    pub fn run(self) -> Result<(), CliError> {
        let [json, sheet, list] = ["check.json", "suspicious.png", "quarantine.txt"].map(|name| self.out.join(name));
        // An edited list is the user's work.
        for file in [&json, &sheet, &list].into_iter().filter(|file| file.exists()) {
            refuse_existing_file(file, "--out")?;
        }
        let overrides = self.options.overrides()?;
        let (config, seed) = overrides.data()?;
        let data = Dataset::open(&DataConfig { skip_bad: true, ..config }, seed)?;
        let count = data.train.len() + data.test.as_ref().map_or(0, |test| test.len());
        let bar = Counter::new("looking at images", count);
        let mut report = inspect(&data, || bar.inc(1));
        drop(bar);
        report.loading = loading(&overrides, &data, &report);

        let write = |source| CliError::from(StorageError::Write { path: self.out.clone(), source });
        std::fs::create_dir_all(&self.out).map_err(write)?;
        let text = serde_json::to_string_pretty(&report).expect("a report is plain data") + "\n";
        write_atomic(&json, text.as_bytes())?;
        write_atomic(&list, report.quarantine().as_bytes())?;
        if let Some(picture) = suspects_sheet(&report, &data) {
            write_atomic(&sheet, &picture)?;
        }
        match self.json {
            true => say!("{}", serde_json::to_string(&report).expect("a report is plain data")),
            false => self.summarise(&report),
        }
        Ok(())
    }

    fn summarise(&self, report: &Report) {
        let Report { data, train, test, .. } = report;
        let classes =
            report.balance.as_ref().map_or("no classes".into(), |all| format!("{} classes", all.classes.len()));
        say!("{data}: {train} training images, {test} test images, {classes}");
        if let Some(sizes) = &report.sizes {
            let (header, rows) = sizes.rows();
            let header: Vec<&str> = header.iter().map(String::as_str).collect();
            say!("\n{}\n", table(&header, &rows));
        }
        if let Some(balance) = report.balance.as_ref().filter(|balance| balance.is_uneven()) {
            let ((small, least), (large, most)) = (balance.smallest(), balance.largest());
            say!(
                "classes: {} has {least} images, {} has {most}: training sees little of the small ones",
                shown(small),
                shown(large)
            );
        }
        if let Some(first) = report.left_out.first() {
            say!("left out when opening: {}, first: {}", report.left_out.len(), shown(first));
        }
        report.counts.iter().filter(|(_, count)| *count > 0).for_each(|&(flaw, count)| say_flaw(report, flaw, count));
        if report.findings.is_empty() {
            say!("images: nothing suspicious");
        }
        say!(
            "reading: {:.0} images/s, decoded and compared, on {} threads",
            report.images_per_s,
            rayon::current_num_threads()
        );
        if let Some(loading) = &report.loading {
            say_loading(loading);
        }
        self.say_what_next(report);
    }

    fn say_what_next(&self, report: &Report) {
        let (out, spoilt) =
            (self.out.display(), report.counts.iter().filter(|(flaw, _)| flaw.spoils()).any(|(_, n)| *n > 0));
        if report.findings.is_empty() {
            say!("next: sogclr pretrain, with the same flags; the report is in {out}/check.json");
            return;
        }
        say!("look at {out}/suspicious.png; {out}/check.json has all of it");
        if spoilt {
            say!("next: read {out}/quarantine.txt, remove the lines of images to keep, and leave out the rest:");
            say!("  sogclr pretrain, with the same flags, --quarantine {out}/quarantine.txt");
        } else {
            say!("next: nothing must be done; to leave images out, see {out}/quarantine.txt");
        }
    }
}

/// A few of the images with a flaw.
fn say_flaw(report: &Report, flaw: Flaw, count: usize) {
    say!("{}: {count}", flaw.words());
    for found in report.findings.iter().filter(|found| found.flaw == flaw).take(NAMED) {
        say!("  {} image {}: {}", found.image.part, shown(&found.image.name), shown(&found.detail));
    }
    if count > NAMED {
        say!("  and {} more", count - NAMED);
    }
}

fn say_loading(loading: &Loading) {
    let Loading { views_per_s_core, views_per_s, threads, encoder, wanted_per_s } = loading;
    say!("loading: {views_per_s:.0} views/s on {threads} threads, {views_per_s_core:.0} on one core");
    let Some((wanted, headroom)) = wanted_per_s.zip(loading.headroom()) else { return };
    let verdict = match headroom {
        h if h < 1.0 => "loading is the bottleneck: use more threads, smaller images stored once, or a larger encoder",
        h if h < 5.0 => "loading takes a noticeable share of the time",
        _ => "loading does not hold it up",
    };
    let times = if headroom < 10.0 { format!("{headroom:.1}") } else { format!("{headroom:.0}") };
    say!("  {encoder} takes {wanted:.1} views/s here, loading makes {times} times as many: {verdict}");
}

/// What loading can do beside what the run would want; says why where it cannot be told.
fn loading(overrides: &Overrides, data: &Dataset, report: &Report) -> Option<Loading> {
    let config = match RunConfig::resolve(&data.describe(), overrides) {
        Ok(config) => config,
        Err(error) => {
            note!("loading is not measured, as there can be no such run: {}", CliError::from(error));
            return None;
        }
    };
    note!("measuring how fast images load, and how fast {} takes them", config.encoder.spec().name());
    let found = Loading::measure(&config, data, report);
    if found.is_none() {
        note!("loading is not measured: no image can be read");
    }
    found
}

/// A name on a terminal: what would move the cursor or end the line is written out.
fn shown(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] }).collect()
}
