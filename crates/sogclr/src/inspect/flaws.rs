//! What can be wrong with an image.

use super::look::Looked;
use super::{Finding, parts, place};
use crate::data::{Dataset, Part, Split};
use serde::Serialize;

/// The longer side against the shorter, from where an image is a strip: a random crop then sees a small part of it.
const STRIP: f64 = 4.0;
/// Of the rows of an image: so much of the grey of missing data is no chance.
const GREY_REST: f32 = 0.1;

/// A kind of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flaw {
    /// It cannot be read or decoded.
    Unreadable,
    /// Its end is the grey of missing data.
    Damaged,
    /// It is all one colour.
    Blank,
    /// A training image that is also a test image, pixel for pixel.
    Leak,
    /// A training image that looks as a test image does.
    NearLeak,
    /// Pixel for pixel another image of its split.
    Duplicate,
    /// It looks as another image of its split does: stored again, resized, brighter or darker.
    NearDuplicate,
    /// Its shorter side is less than half of the crop that suits the data.
    Tiny,
    /// One side is more than four times the other.
    Strip,
}

impl Flaw {
    /// The worst first.
    pub const ALL: [Self; 9] = [
        Self::Unreadable,
        Self::Damaged,
        Self::Blank,
        Self::Leak,
        Self::NearLeak,
        Self::Duplicate,
        Self::NearDuplicate,
        Self::Tiny,
        Self::Strip,
    ];

    /// Whether training is better off without such an image, whatever the data are.
    pub fn spoils(self) -> bool {
        !matches!(self, Self::Tiny | Self::Strip)
    }

    /// In a word or two.
    pub fn words(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Damaged => "damaged",
            Self::Blank => "one colour",
            Self::Leak => "also a test image",
            Self::NearLeak => "nearly a test image",
            Self::Duplicate => "duplicate",
            Self::NearDuplicate => "near duplicate",
            Self::Tiny => "tiny",
            Self::Strip => "a strip",
        }
    }
}

/// What each image shows alone; `usual_side` is the crop that suits the data.
pub(super) fn of_single_images(data: &Dataset, looked: [&[Looked]; 2], usual_side: usize) -> Vec<Finding> {
    let all = parts(data, looked).flat_map(|(part, split, looked)| {
        looked.iter().enumerate().flat_map(move |(id, looked)| of_one(part, split, id, looked, usual_side))
    });
    all.collect()
}

fn of_one(part: Part, split: &Split, id: usize, looked: &Looked, usual_side: usize) -> Vec<Finding> {
    let finding = |flaw: Flaw, detail: String| Finding { flaw, image: place(part, split, id), detail, twin: None };
    let look = match looked {
        Ok(look) => look,
        Err(cause) => return vec![finding(Flaw::Unreadable, cause.clone())],
    };
    let (height, width) = (look.height, look.width);
    let (short, long) = (height.min(width), height.max(width));
    let size = format!("{width} × {height} pixels");
    let mut found = Vec::new();
    if look.is_blank {
        found.push(finding(Flaw::Blank, size.clone()));
    } else if look.grey_rest >= GREY_REST {
        let share = 100.0 * look.grey_rest;
        found.push(finding(Flaw::Damaged, format!("the lower {share:.0} % are the grey of missing data")));
    }
    if 2 * short < usual_side {
        found.push(finding(Flaw::Tiny, size.clone()));
    }
    if long as f64 > STRIP * short as f64 {
        found.push(finding(Flaw::Strip, size));
    }
    found
}
