//! A run that goes on with other images: those that it had, told by their content, keep what is known of them.

use super::init::carried;
use super::metrics::Window;
use super::pretrain::{Found, newest, open_run, shared_manifest};
use super::ranks::{check_images, start_alike};
use super::run::narrowed;
use super::{Pretraining, Run, TrainError, open_for};
use crate::comm::Group;
use crate::config::RunConfig;
use crate::data::{DataConfig, DataError, Dataset, Matching};
use crate::provenance::Provenance;
use std::path::Path;

impl Pretraining {
    /// Goes on with the run in `folder` on the images, or pairs, at `path`: exactly, where they are those of the run. Where images
    /// were added, renamed or removed, it goes on with what there is now, at the same share of its epochs: what remains keeps
    /// its state, and [`warning`](Self::warning) says how much that is. `checking` is told how many images are checked, and gives
    /// what to call for each.
    pub fn resume_on<P: Fn() + Sync>(
        folder: &Path,
        path: &Path,
        provenance: Provenance,
        group: &Group,
        checking: impl FnOnce(usize) -> P,
    ) -> Result<Self, TrainError> {
        let (mut run, kept) = open_run(folder, group)?;
        let config = on(kept, path);
        let compute = group.together(open_for(&config.train, group.place().local_rank))?;
        start_alike(group, &provenance, &config, &compute)?;
        let mut before = shared_manifest(folder, run.as_ref(), group)?;
        let count = group.together(before.count())?;
        let everything = group.together(Run::open_all_data_of(folder, &config))?;
        let is_whole = config.data.limit.is_some() || everything.train.len() == count;
        let same = match narrowed(&config, &mut before, everything) {
            Ok(data) => Ok(Some(data).filter(|_| is_whole)),
            Err(TrainError::Data(DataError::Changed(_))) => Ok(None),
            Err(error) => Err(error),
        };
        let same = group.together(same)?;
        let folder = folder.to_owned();
        if !group.any(same.is_none())
            && let Some(mut data) = same
        {
            group.together(data.train.watch(&mut before, config.data.verify_content))?;
            let moved = run.as_mut().map_or(Ok(()), |run| run.set_config(config.clone()));
            group.together(moved)?;
            let checkpoint = newest(&folder, run.as_ref(), group)?;
            let found = Found { folder, run, config, data, checkpoint, notes: Vec::new(), left_out: Vec::new() };
            return Self::restored(found, &compute, provenance, group);
        }

        let mut data = group.together(Dataset::open(&config.data, config.seed))?;
        let (mut notes, progress) = (Vec::new(), checking(data.train.len() / group.size()));
        let settings = (&config.data, config.seed);
        let (mut manifest, left_out) = check_images(group, &mut data.train, settings, &mut notes, progress)?;
        config.validate(&data.describe_at(config.augment.views[0].size))?;
        group.together(data.train.watch(&mut manifest, config.data.verify_content))?;
        let matching = group.together(Matching::between(&mut before, &mut manifest))?;
        let (mut checkpoint, broken) = newest(&folder, run.as_ref(), group)?;
        if checkpoint.state.samples() != count {
            let samples = checkpoint.state.samples();
            return Err(TrainError::Misfit(format!("it knows {samples} samples, the manifest has {count}")));
        }
        let columns: Vec<String> = checkpoint.state.columns().map(|(name, _)| name.to_owned()).collect();
        let what = if columns.is_empty() { "the run goes on with" } else { "u carried over for" };
        notes.push(format!("{what} {}", matching.counts()));
        checkpoint.state = carried(&checkpoint.state, columns.into_iter(), &matching);
        // The same share of the epochs, which have another number of steps.
        let steps = |images: usize| images / config.train.batch;
        checkpoint.step = checkpoint.step * steps(data.train.len()) / steps(count).max(1);
        checkpoint.window = Window::default();
        let adopted = match &mut run {
            Some(run) => run.adopt(config.clone(), &mut manifest, &checkpoint),
            None => Ok(()),
        };
        group.together(adopted)?;
        let found = Found { folder, run, config, data, checkpoint: (checkpoint, broken), notes, left_out };
        Self::restored(found, &compute, provenance, group)
    }
}

/// The settings with other data.
fn on(config: RunConfig, path: &Path) -> RunConfig {
    let data = match config.data.pairs {
        Some(_) => DataConfig { pairs: Some(path.to_owned()), ..config.data },
        None => DataConfig { path: Some(path.to_owned()), ..config.data },
    };
    RunConfig { data: data.absolute(), ..config }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use crate::data::Manifest;
    use crate::state::LOG_U;
    use crate::storage::write_atomic;
    use crate::train::{Outcome, Pretraining};
    use std::collections::HashMap;
    use std::ops::ControlFlow;

    fn png(root: &Path, name: &str, value: u8) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let picture = image::RgbImage::from_fn(8, 8, |x, y| image::Rgb([value, (x * y) as u8, (x * 30) as u8]));
        picture.save(path).unwrap();
    }

    fn config(data: &Path, more: &[&str]) -> (RunConfig, Dataset) {
        let mut settings = Overrides::default();
        settings.lay("data.path", toml::Value::String(data.to_string_lossy().into_owned()));
        let tiny = ["encoder.name=resnet8", "encoder.width=0.25", "head.hidden=16", "head.output=8"];
        let tiny = tiny.iter().chain(&["data.image_size=8", "train.batch=4", "train.epochs=2"]).chain(more);
        tiny.for_each(|setting| settings.set(setting).unwrap());
        RunConfig::open(&settings).unwrap()
    }

    /// Twelve images, the run on them stopped after five of six steps.
    fn stopped(root: &Path) -> HashMap<String, f32> {
        (0..12).for_each(|i| png(&root.join("data"), &format!("{i:02}.png"), 20 * i));
        let (config, data) = config(&root.join("data"), &[]);
        let mut run = Pretraining::new(config, data, &root.join("run")).unwrap();
        let stop = |step: usize| if step == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        assert_eq!(run.train(|report| stop(report.step)).unwrap(), Outcome::Stopped);
        let known = u_by_name(&run);
        assert!(known.values().all(|u| !u.is_nan()), "{known:?}");
        known
    }

    fn u_by_name(run: &Pretraining) -> HashMap<String, f32> {
        let (split, checkpoint) = (run.split(), run.checkpoint());
        (0..split.len()).map(|id| (split.name(id), checkpoint.state.column(LOG_U)[id])).collect()
    }

    fn resume(root: &Path, data: &str) -> Result<Pretraining, TrainError> {
        let provenance = Provenance::default();
        Pretraining::resume_on(&root.join("run"), &root.join(data), provenance, &Group::solo(), |_| || {})
    }

    /// Two are gone, one is renamed, one has other content, and six are new.
    fn change(root: &Path) {
        let data = root.join("data");
        std::fs::remove_file(data.join("00.png")).unwrap();
        std::fs::remove_file(data.join("07.png")).unwrap();
        std::fs::create_dir(data.join("more")).unwrap();
        std::fs::rename(data.join("03.png"), data.join("more/a.png")).unwrap();
        png(&data, "05.png", 255);
        (0..6).for_each(|i| png(&data, &format!("more/{i}.png"), 101 + i));
    }

    #[test]
    fn what_remains_of_changed_data_keeps_its_u() {
        let root = tempfile::tempdir().unwrap();
        let known = stopped(root.path());
        change(root.path());
        let provenance = Provenance::default();
        let refused = Pretraining::resume(&root.path().join("run"), provenance, &Group::solo()).err().unwrap();
        assert!(refused.to_string().contains("00.png is gone"), "{refused}");
        let mut run = resume(root.path(), "data").unwrap();
        let said = run.warning().unwrap().to_owned();
        assert!(said.contains("u carried over for 9 of 16 images; 7 are new, 3 are gone"), "{said}");
        let now = u_by_name(&run);
        assert_eq!(now.len(), 16);
        for (name, u) in &now {
            let before = if name == "more/a.png" { "03.png" } else { name };
            match known.get(before).filter(|_| name != "05.png") {
                Some(known) => assert_eq!(u, known, "{name}"),
                None => assert!(u.is_nan(), "{name}"),
            }
        }
        // Five of six steps are six of eight.
        assert_eq!((run.step(), run.total_steps()), (6, 8));
        assert_eq!(run.train(|_| ControlFlow::Continue(())).unwrap(), Outcome::Finished);
        drop(run);
        let again = Pretraining::resume(&root.path().join("run"), Provenance::default(), &Group::solo()).unwrap();
        assert_eq!((again.step(), again.split().len(), again.warning()), (8, 16, None));
    }

    #[test]
    fn data_that_was_only_moved_is_gone_on_with_exactly() {
        let root = tempfile::tempdir().unwrap();
        let known = stopped(root.path());
        std::fs::rename(root.path().join("data"), root.path().join("elsewhere")).unwrap();
        let run = resume(root.path(), "elsewhere").unwrap();
        assert_eq!((run.step(), run.total_steps(), run.warning()), (5, 6, None));
        assert_eq!(u_by_name(&run), known);
        drop(run);
        // From now on it lies there.
        Pretraining::resume(&root.path().join("run"), Provenance::default(), &Group::solo()).unwrap();
    }

    /// A crash between the checkpoint and the manifest that it is of, and one before.
    #[test]
    fn manifest_and_checkpoint_change_together() {
        let root = tempfile::tempdir().unwrap();
        stopped(root.path());
        let folder = root.path().join("run");
        let old = std::fs::read(folder.join(Manifest::FILE)).unwrap();
        change(root.path());
        drop(resume(root.path(), "data").unwrap());
        let new = std::fs::read(folder.join(Manifest::FILE)).unwrap();
        assert_ne!(old, new);
        let newest = folder.join("checkpoints/step-000000006.safetensors");
        let next = |checkpoint: &[u8]| folder.join(crate::train::run::next_manifest(checkpoint));
        // As if the last rename had not come.
        std::fs::write(folder.join(Manifest::FILE), &old).unwrap();
        write_atomic(&next(&std::fs::read(&newest).unwrap()), &new).unwrap();
        let run = Pretraining::resume(&folder, Provenance::default(), &Group::solo()).unwrap();
        assert_eq!(run.split().len(), 16);
        drop(run);
        // As if the checkpoint had not come.
        write_atomic(&next(b"another checkpoint"), &old).unwrap();
        let run = Pretraining::resume(&folder, Provenance::default(), &Group::solo()).unwrap();
        assert_eq!((run.split().len(), next(b"another checkpoint").exists()), (16, false));
    }

    #[test]
    fn a_run_starts_from_a_run_with_u_of_the_images_that_are_the_same() {
        let root = tempfile::tempdir().unwrap();
        let known = stopped(root.path());
        change(root.path());
        let init = format!("train.init={:?}", root.path().join("run"));
        let (wanted, data) = config(&root.path().join("data"), &[&init]);
        let run = Pretraining::new(wanted, data, &root.path().join("second")).unwrap();
        let said = run.warning().unwrap().to_owned();
        assert!(said.contains("u carried over for 9 of 16 images; 7 are new, 3 are gone"), "{said}");
        assert_eq!(u_by_name(&run)["more/a.png"], known["03.png"]);
        let first = Run::read_latest(&root.path().join("run")).unwrap().0;
        assert_eq!((run.step(), run.checkpoint().model == first.model), (0, true));

        // Another temperature has another u.
        let (wanted, data) = config(&root.path().join("data"), &[&init, "method.temperature=0.7"]);
        let run = Pretraining::new(wanted, data, &root.path().join("third")).unwrap();
        assert!(run.warning().unwrap().contains("another temperature"), "{:?}", run.warning());
        assert!(u_by_name(&run).values().all(|u| u.is_nan()));
    }

    /// The images are broken, and yet the weights are what is complained about.
    #[test]
    fn weights_that_do_not_fit_are_met_before_the_images() {
        let root = tempfile::tempdir().unwrap();
        stopped(root.path());
        let file = root.path().join("weights.safetensors");
        std::fs::copy(root.path().join("run/encoder.safetensors"), &file).unwrap();
        (0..12).for_each(|i| std::fs::write(root.path().join(format!("data/{i:02}.png")), b"broken").unwrap());
        png(&root.path().join("data"), "00.png", 1);
        for init in [root.path().join("run"), root.path().join("run/encoder.safetensors"), file] {
            let init = format!("train.init={init:?}");
            let (wanted, data) = config(&root.path().join("data"), &[&init, "encoder.width=0.5"]);
            let error = Pretraining::new(wanted, data, &root.path().join("second")).err().unwrap().to_string();
            assert!(error.contains("resnet8 of width 0.25") && error.contains("resnet8 of width 0.5"), "{error}");
        }
    }
}
