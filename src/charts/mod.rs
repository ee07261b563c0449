//! Charts as SVG.

mod plot;
mod study;
mod theme;

pub use plot::{Chart, Dots, Series};
pub use study::study_charts;
