//! How large the images are.

use super::look::Look;
use serde::Serialize;

/// The percentiles that are shown.
const PERCENTILES: [f64; 7] = [0.0, 5.0, 25.0, 50.0, 75.0, 95.0, 100.0];

/// Percentiles of the images' sides and shapes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sizes {
    /// Which percentiles; 0 is the smallest image, 100 the largest.
    pub percentiles: Vec<f64>,
    /// Pixels of a row.
    pub width: Vec<f64>,
    /// Rows of pixels.
    pub height: Vec<f64>,
    /// Pixels of the shorter side.
    pub shorter_side: Vec<f64>,
    /// The longer side against the shorter.
    pub aspect: Vec<f64>,
}

impl Sizes {
    /// `None` of nothing.
    pub(super) fn of(looks: &[&Look]) -> Option<Self> {
        let percentiles = |of: &dyn Fn(&Look) -> f64| {
            let mut all: Vec<f64> = looks.iter().map(|look| of(look)).collect();
            all.sort_by(f64::total_cmp);
            // The nearest rank: a value that an image has.
            PERCENTILES.map(|p| all[(p / 100.0 * (all.len() - 1) as f64).round() as usize]).to_vec()
        };
        let sides = |look: &Look| (look.height.min(look.width) as f64, look.height.max(look.width) as f64);
        (!looks.is_empty()).then(|| Self {
            percentiles: PERCENTILES.to_vec(),
            width: percentiles(&|look| look.width as f64),
            height: percentiles(&|look| look.height as f64),
            shorter_side: percentiles(&|look| sides(look).0),
            aspect: percentiles(&|look| sides(look).1 / sides(look).0),
        })
    }

    /// Header and rows of a table.
    pub fn rows(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let head = |p: &f64| match *p as usize {
            0 => "smallest".to_owned(),
            100 => "largest".to_owned(),
            p => format!("{p} %"),
        };
        let header = [vec![String::new()], self.percentiles.iter().map(head).collect()].concat();
        let row = |what: &str, values: &[f64], digits: usize| {
            [vec![what.to_owned()], values.iter().map(|v| format!("{v:.digits$}")).collect()].concat()
        };
        let rows = vec![
            row("width", &self.width, 0),
            row("height", &self.height, 0),
            row("shorter side", &self.shorter_side, 0),
            row("longer / shorter", &self.aspect, 2),
        ];
        (header, rows)
    }
}
