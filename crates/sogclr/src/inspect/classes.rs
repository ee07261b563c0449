//! How many images each class has.

use crate::data::{Dataset, Split};
use serde::Serialize;

/// The classes and their images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Balance {
    /// Name, training images and test images of every class.
    pub classes: Vec<(String, usize, usize)>,
}

impl Balance {
    /// `None` without labels.
    pub(super) fn of(data: &Dataset) -> Option<Self> {
        let count = |split: &Split| {
            let mut counts = vec![0_usize; data.classes.len()];
            let labels = (0..split.len()).filter_map(|id| split.label(id));
            labels.for_each(|label| counts[label as usize] += 1);
            counts
        };
        if !data.train.is_labelled() || data.classes.is_empty() {
            return None;
        }
        let train = count(&data.train);
        let test = data.test.as_ref().filter(|test| test.is_labelled()).map_or(vec![0; train.len()], count);
        let rows = data.classes.iter().zip(train).zip(test).map(|((name, train), test)| (name.clone(), train, test));
        Some(Self { classes: rows.collect() })
    }

    /// The class with the fewest training images, and how many it has; of equal ones the first.
    pub fn smallest(&self) -> (&str, usize) {
        let least = self.classes.iter().min_by_key(|(_, train, _)| *train).expect("there are classes");
        (&least.0, least.1)
    }

    /// The class with the most training images, and how many it has; of equal ones the first.
    pub fn largest(&self) -> (&str, usize) {
        let most = self.classes.iter().rev().max_by_key(|(_, train, _)| *train).expect("there are classes");
        (&most.0, most.1)
    }

    /// Whether the largest class has more than ten times the images of the smallest.
    pub fn is_uneven(&self) -> bool {
        self.largest().1 > 10 * self.smallest().1
    }
}
