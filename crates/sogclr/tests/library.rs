//! The library as another crate uses it: data and methods of one's own, errors that leave a trainer usable, runs that go on.

use sogclr::comm::Group;
use sogclr::config::{Overrides, RunConfig};
use sogclr::data::{DataConfig, DataError, Dataset, Image, Source, Split};
use sogclr::encoder::{Compute, EncoderConfig, ResNetConfig, ResNetName};
use sogclr::loss::{Dcl, Loss, LossError, LossInput, LossOutput};
use sogclr::method::{MethodConfig, Spec};
use sogclr::provenance::{NUMERICS, Provenance};
use sogclr::race::{Cell, Trained, train_here};
use sogclr::report::{Contender, comparison_markdown};
use sogclr::study::Measure;
use sogclr::train::{Outcome, Pretraining, Run, StepReport, TrainError, TrainSummary};
use sogclr::trained::TrainedRun;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Images of `channels` channels of 16 bits, which count how often they are decoded.
struct Generated {
    channels: usize,
    decoded: Arc<AtomicUsize>,
}

impl Source for Generated {
    fn count(&self) -> usize {
        24
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        self.decoded.fetch_add(1, Ordering::Relaxed);
        let value = |k: usize| ((k * 2654435761 + index * 40503) % 65536) as u16;
        Ok(Image::new(16, 16, self.channels, (0..256 * self.channels).map(value).collect::<Vec<u16>>()))
    }

    fn dimensions(&self, _: usize) -> Result<sogclr::data::Dimensions, DataError> {
        Ok(sogclr::data::Dimensions { height: 16, width: 16, channels: self.channels })
    }
}

fn data(channels: usize) -> (Dataset, Arc<AtomicUsize>) {
    let decoded = Arc::new(AtomicUsize::new(0));
    let source = Generated { channels, decoded: decoded.clone() };
    (Dataset::new("generated", Split::new(Arc::new(source), None)).unwrap(), decoded)
}

/// DCL that fails at one step of the run.
struct Failing(usize);

impl Spec for Failing {
    fn loss(&self) -> Box<dyn Loss> {
        Box::new(FailingLoss(self.0))
    }
}

struct FailingLoss(usize);

impl Loss for FailingLoss {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        match input.at.step == self.0 {
            true => Err(LossError::NonFiniteLoss),
            false => Dcl { temperature: 0.2, sigma: None }.forward(input),
        }
    }
}

fn small() -> EncoderConfig {
    ResNetConfig { width: 0.25, ..ResNetConfig::for_size(ResNetName::Resnet8, 16) }.into()
}

fn config(method: Option<Failing>, channels: usize) -> RunConfig {
    let settings = Overrides::default().batch(8).epochs(4).encoder(small());
    let settings = match method {
        Some(method) => settings.method(MethodConfig::external("failing", method)),
        None => settings,
    };
    RunConfig::resolve(&data(channels).0.describe(), &settings).unwrap()
}

fn to_the_end(run: &mut Pretraining) -> Result<Outcome, TrainError> {
    run.train(|_| ControlFlow::Continue(()))
}

fn encoder(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("encoder.safetensors")).unwrap()
}

#[test]
fn an_error_leaves_a_trainer_that_can_be_saved_and_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, broken) = (folder.path().join("whole"), folder.path().join("broken"));
    let mut run = Pretraining::new(config(Some(Failing(99)), 3), data(3).0, &whole).unwrap();
    assert_eq!(to_the_end(&mut run).unwrap(), Outcome::Finished);

    let mut run = Pretraining::new(config(Some(Failing(7)), 3), data(3).0, &broken).unwrap();
    let error = to_the_end(&mut run).unwrap_err();
    assert!(matches!(error, TrainError::Loss { step: 7, .. }), "{error}");
    // Seven steps are done, and nothing of the eighth.
    let checkpoint = run.checkpoint();
    assert_eq!((checkpoint.step, run.step()), (7, 7));
    checkpoint.save(&broken.join("checkpoints/step-000000007.safetensors")).unwrap();
    drop(run);
    // The program mends its loss and goes on to the bytes of a run that never failed.
    let mut run = Pretraining::resume_with(
        &broken,
        config(Some(Failing(99)), 3),
        data(3).0,
        Provenance::default(),
        &Group::solo(),
    )
    .unwrap();
    assert_eq!(run.step(), 7);
    to_the_end(&mut run).unwrap();
    assert_eq!(encoder(&broken), encoder(&whole));
}

#[test]
fn a_run_of_another_programs_method_or_data_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut run = Pretraining::new(config(Some(Failing(99)), 3), data(3).0, &out).unwrap();
    run.train(|_| ControlFlow::Break(())).unwrap();
    drop(run);
    let error = Pretraining::resume(&out, Provenance::default(), &Group::solo()).err().unwrap().to_string();
    assert!(error.contains("\"generated\"") && error.contains("another program"), "{error}");
    let without = RunConfig { method: toml_method(&out), ..config(None, 3) };
    let error = Pretraining::resume_with(&out, without, data(3).0, Provenance::default(), &Group::solo())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("\"failing\" belongs to another program"), "{error}");
    // Its encoder is everybody's.
    let run = TrainedRun::open(&out).unwrap();
    let features = run.encoder(Compute::cpu()).unwrap().extract(&data(3).0.train, |_| {}).unwrap().features;
    assert_eq!(features.dim(), (24, 16));
}

/// The method as a program without it reads it.
fn toml_method(out: &Path) -> MethodConfig {
    TrainedRun::open(out).unwrap().config.method
}

#[test]
fn the_first_layer_follows_the_channels() {
    let folder = tempfile::tempdir().unwrap();
    for channels in [1, 2, 5] {
        let out = folder.path().join(channels.to_string());
        let mut run = Pretraining::new(config(None, channels), data(channels).0, &out).unwrap();
        to_the_end(&mut run).unwrap();
        let (weights, _) = sogclr::storage::load_tensors(&out.join("encoder.safetensors")).unwrap();
        // One channel is repeated three times.
        let wanted = if channels == 1 { 3 } else { channels };
        assert_eq!(weights["conv1.weight"].shape[1], wanted);
    }
    // Another number of channels than the run's is no silent change.
    let run = TrainedRun::open(&folder.path().join("5")).unwrap();
    let error = run.encoder(Compute::cpu()).unwrap().extract(&data(2).0.train, |_| {}).err().unwrap().to_string();
    assert!(error.contains("2 channels"), "{error}");
}

#[test]
fn at_the_start_an_image_is_decoded_once() {
    let folder = tempfile::tempdir().unwrap();
    let (data, decoded) = data(3);
    let config =
        RunConfig::resolve(&data.describe(), &Overrides::default().batch(8).epochs(1).encoder(small())).unwrap();
    assert_eq!(decoded.load(Ordering::Relaxed), 0, "headers are enough");
    let _run = Pretraining::new(config, data, &folder.path().join("run")).unwrap();
    assert_eq!(decoded.load(Ordering::Relaxed), 24);
}

#[test]
fn runs_and_checkpoints_name_program_and_numerics() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let origin = Provenance::of("test 1.2");
    let mut run = Pretraining::begin(config(None, 3), data(3).0, &out, origin.clone(), &Group::solo(), || {}).unwrap();
    to_the_end(&mut run).unwrap();
    assert_eq!(run.checkpoint().provenance, origin);
    assert_eq!(Run::read_entry::<TrainSummary>(&out, TrainSummary::KEY).unwrap().provenance, Some(origin.clone()));
    let file = std::fs::read_to_string(out.join("provenance.json")).unwrap();
    assert!(file.contains("test 1.2") && file.contains(&format!("\"numerics\": {NUMERICS}")), "{file}");
    let later = Provenance { numerics: origin.numerics + 1, ..origin };
    drop(run);
    let run = Pretraining::resume_with(&out, config(None, 3), data(3).0, later, &Group::solo()).unwrap();
    assert!(run.warning().unwrap().contains("numerics"), "{:?}", run.warning());
}

/// A race in one process: two methods on the embedded images, stopped and gone on with, measured, and put into a table.
#[test]
fn methods_race_without_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let mut rows = Vec::new();
    for method in ["sogclr", "vicreg"] {
        let images = DataConfig { limit: Some(40), ..Default::default() };
        let mut settings = Overrides::default().images(&images).batch(8).epochs(2).image_size(8).encoder(small());
        settings.set(&format!("method.kind={method}")).unwrap();
        let (config, data) = RunConfig::open(&settings).unwrap();
        let cell = Cell::new(folder.path().join(method), config);
        cell.check(data.train.len()).unwrap();
        let train = |steps: usize| {
            let observe =
                |at: &StepReport| if at.step < steps { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
            cell.train(|cell, start| train_here(cell, start, Provenance::default(), observe)).unwrap()
        };
        assert_eq!(train(3), Trained::Stopped);
        assert!(cell.cost().is_none());
        assert_eq!((train(99), train(0)), (Trained::Finished, Trained::Finished), "the second finds it done");
        let mut row = Contender { method: method.into(), ..Default::default() };
        row.add(&cell.result(|_| {}).unwrap());
        row.add_cost(&cell.cost().unwrap());
        rows.push(row);
    }
    let table = comparison_markdown(&rows, Measure::Linear);
    assert!(table.lines().count() == 4 && table.contains("| sogclr | 1     |"), "{table}");
}
