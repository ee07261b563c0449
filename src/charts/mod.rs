//! Charts as SVG.

mod plot;
mod study;

pub use plot::{Chart, Dots, Series};
pub use study::study_charts;
