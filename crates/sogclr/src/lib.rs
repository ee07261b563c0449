//! Contrastive pre-training that does not need a large batch: SogCLR, its baselines and their evaluation.
//!
//! Data flows one way: [`config`] → [`data`] → [`augment`] → [`batch`] → [`encoder`] → [`loss`] (+ [`state`]) →
//! [`optim`] → [`train`] (checkpoint) → [`eval`] → [`report`]. `ARCHITECTURE.md` has the map and the invariants,
//! `docs/paper-map.md` the way from each equation of the paper to its function and test.
//!
//! Pre-train with [`train::Pretraining`], look at a run with [`trained::TrainedRun`]; bring images as a [`data::Source`], a loss as
//! a [`loss::Loss`], a method as a [`method::Spec`]; or take any loss to a burn model of your own. `examples/` has each of these
//! in fewer than 60 lines. What is stable: the façade that `ARCHITECTURE.md` names; all else may change with any version.
//!
//! ```no_run
//! use sogclr::config::{Overrides, RunConfig};
//! use sogclr::data::DataConfig;
//! use sogclr::train::Pretraining;
//! use std::ops::ControlFlow;
//!
//! let photos = DataConfig { path: Some("photos".into()), ..Default::default() };
//! let (config, data) = RunConfig::open(&Overrides::default().images(&photos).batch(64))?;
//! Pretraining::new(config, data, "runs/photos".as_ref())?.train(|_| ControlFlow::Continue(()))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(missing_docs)]

pub mod advise;
pub mod augment;
pub mod batch;
pub mod bench;
pub mod check;
pub mod comm;
pub mod config;
pub mod cpu;
pub mod data;
pub mod encoder;
pub mod estimate;
pub mod eval;
pub mod inspect;
pub mod loss;
pub mod math;
pub mod method;
pub mod onnx;
pub mod optim;
pub mod pack;
pub mod params;
pub mod provenance;
pub mod race;
pub mod report;
pub mod state;
pub mod storage;
pub mod study;
pub mod system;
pub mod text;
pub mod theory;
pub mod train;
pub mod trained;

/// The version of burn that models, tensors and devices here are of.
pub use burn;
/// The version of ndarray that matrices here are of.
pub use ndarray;
