//! What is wrong with data before hours are spent on it. Every image is decoded once, in parallel (`look`); what a single
//! image shows is its flaw (`flaws`), what it shares with another one makes them twins (`twins`). Beside them: balance of the
//! classes, sizes, and whether loading keeps up with the encoder.
//!
//! Adding a finding: a variant of [`Flaw`], and the place that sees it.

mod classes;
mod flaws;
mod loading;
mod look;
mod near;
mod sheet;
mod sizes;
mod twins;

pub use classes::Balance;
pub use flaws::Flaw;
pub use loading::Loading;
pub use sheet::{suspects_sheet, views_sheet};
pub use sizes::Sizes;

use crate::augment::Resizer;
use crate::data::{Dataset, Part, Quarantine, QuarantineEntry, Split};
use look::{Look, Looked, look_at};
use rayon::prelude::*;
use serde::Serialize;
use std::time::Instant;

/// An image of one of the splits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Its split.
    pub part: Part,
    /// Its number there.
    #[serde(skip)]
    pub id: usize,
    /// Its name there.
    pub name: String,
}

/// One thing that is suspicious.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What it is.
    pub flaw: Flaw,
    /// The image.
    #[serde(flatten)]
    pub image: Place,
    /// In words, with figures.
    pub detail: String,
    /// The image that it repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub twin: Option<Place>,
}

/// What was found; `check.json` is this.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the data is called.
    pub data: String,
    /// Training images.
    pub train: usize,
    /// Test images.
    pub test: usize,
    /// What was left out before, a sentence each: captions that cannot be used, images of a quarantine list.
    pub left_out: Vec<String>,
    /// How many images have each flaw.
    pub counts: Vec<(Flaw, usize)>,
    /// Images of each class; absent without labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance: Option<Balance>,
    /// Percentiles of what can be decoded; absent if that is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sizes: Option<Sizes>,
    /// Images that were read, decoded and compared in a second, on all threads.
    pub images_per_s: f64,
    /// What loading can do; absent where it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loading: Option<Loading>,
    /// Everything suspicious, split by split in the order of the images.
    pub findings: Vec<Finding>,
}

/// Looks at every image of `data`; `looked` is called once for each.
pub fn inspect(data: &Dataset, looked: impl Fn() + Sync) -> Report {
    let began = Instant::now();
    let usual_side = data.describe().size;
    let look = |split: &Split| -> Vec<Looked> {
        let all = (0..split.len()).into_par_iter().map_init(Resizer::default, |resizer, id| {
            let found = look_at(split, id, resizer);
            looked();
            found
        });
        all.collect()
    };
    let train = look(&data.train);
    let test = data.test.as_ref().map(look).unwrap_or_default();
    let seconds = began.elapsed().as_secs_f64();

    let mut findings = flaws::of_single_images(data, [&train, &test], usual_side);
    findings.extend(twins::find(data, [&train, &test]));
    findings.sort_by_key(|finding| (finding.image.part, finding.image.id, finding.flaw));
    let looks: Vec<&Look> = train.iter().chain(&test).filter_map(|looked| looked.as_ref().ok()).collect();
    Report {
        data: data.title.clone(),
        train: train.len(),
        test: test.len(),
        left_out: data.problems.clone(),
        counts: Flaw::ALL.map(|flaw| (flaw, findings.iter().filter(|found| found.flaw == flaw).count())).to_vec(),
        balance: Balance::of(data),
        sizes: Sizes::of(&looks),
        images_per_s: (train.len() + test.len()) as f64 / seconds.max(1e-9),
        loading: None,
        findings,
    }
}

impl Report {
    /// How many images have a flaw.
    pub fn count(&self, flaw: Flaw) -> usize {
        self.counts.iter().find(|(known, _)| *known == flaw).map_or(0, |&(_, count)| count)
    }

    /// The images that training is better off without, once each. What may be as it should is left to the reader: it stands there
    /// as a comment.
    pub fn quarantine(&self) -> String {
        let line = |finding: &Finding| {
            let Finding { flaw, image, detail, .. } = finding;
            let (name, part) = (image.name.clone(), Some(image.part));
            QuarantineEntry { name, part, reason: format!("{}: {detail}", flaw.words()) }
        };
        let mut seen = std::collections::HashSet::new();
        let sure = self.findings.iter().filter(|found| found.flaw.spoils());
        let sure = sure.filter(|found| seen.insert((found.image.part, found.image.id))).map(line);
        let sure = Quarantine { entries: sure.collect() }.to_text();
        let unsure = self.findings.iter().filter(|found| !found.flaw.spoils());
        let unsure: String = unsure.map(|found| format!("# {}\n", line(found))).collect();
        let head = "# Images to leave out: sogclr pretrain --quarantine FILE. A line is a name, a tab, train or test, a tab, the reason.\n\
                    # Remove the lines of images to keep; lines that begin with # and a blank are not read.\n";
        let doubt = if unsure.is_empty() {
            ""
        } else {
            "# Perhaps as they should be; remove # and blank to leave them out too:\n"
        };
        format!("{head}{sure}{doubt}{unsure}")
    }
}

/// The splits with their names and what was seen of their images.
fn parts<'a>(data: &'a Dataset, looked: [&'a [Looked]; 2]) -> impl Iterator<Item = (Part, &'a Split, &'a [Looked])> {
    let [train, test] = looked;
    let held_out = data.test.as_ref().map(|split| (Part::Test, split, test));
    std::iter::once((Part::Train, &data.train, train)).chain(held_out)
}

fn place(part: Part, split: &Split, id: usize) -> Place {
    Place { part, id, name: split.name(id) }
}

#[cfg(test)]
mod tests;
