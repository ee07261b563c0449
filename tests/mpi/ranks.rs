//! Several processes train what one trains.

use super::{Job, PROGRAM, signal};
use super::{LONG, SHORT, SMALL, alone, checkpoint, distance, encoder, fail, mpirun, mpirun_raw, succeed, turn};
use std::path::Path;
use std::process::Command;

/// f32 sums in another order, over 18 steps.
const ROUNDING: f64 = 1e-4;

#[test]
fn every_number_of_processes_trains_one_run() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let out = |name: &str| folder.path().join(name);
    succeed(alone().args(SMALL).arg(out("one")).args(SHORT));
    for (name, ranks) in [("two", 2), ("again", 2), ("four", 4)] {
        let said = succeed(mpirun(ranks).args(SMALL).arg(out(name)).args(SHORT).arg("--verbose"));
        assert_eq!(said.matches("load it in PyTorch").count(), 1, "one rank talks: {said}");
        assert!(said.contains("rank wait"), "{said}");
        let apart = distance(&checkpoint(&out(name)), &checkpoint(&out("one")));
        println!("{ranks} processes: {apart:.1e} from one");
        assert!(apart < ROUNDING, "{apart:e}");
    }
    assert_eq!(encoder(&out("two")), encoder(&out("again")), "the same number of processes gives the same bytes");
    let metrics = std::fs::read_to_string(out("two").join("metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 18);
    assert!(metrics.contains("rank_wait"), "{metrics}");
}

/// Of folders that are not one: each process reads a copy of its own.
#[test]
fn pairs_and_images_of_folders_train_on_copies_of_the_data() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let copies = ["a", "b"].map(|name| folder.path().join(name));
    copies.iter().for_each(|copy| pictures(copy, 32));
    let out = folder.path().join("run");
    let mut job = mpirun_raw();
    for (index, copy) in copies.iter().enumerate() {
        job.args((index > 0).then_some(":")).args(["-n", "1", PROGRAM]);
        job.arg("pretrain").arg(copy).arg("--out").arg(&out);
        job.args(["--batch", "8", "--epochs", "1", "--encoder", "resnet8", "--image-size", "8"]);
    }
    succeed(&mut job);
    let pairs = folder.path().join("pairs");
    let flags = ["--limit", "32", "--batch", "8", "--epochs", "1", "--encoder", "resnet8", "--image-size", "12"];
    succeed(mpirun(2).args(["pretrain", "--pairs", "emoji", "--out"]).arg(&pairs).args(flags));
    let one = folder.path().join("one");
    succeed(alone().args(["pretrain", "--pairs", "emoji", "--out"]).arg(&one).args(flags));
    let apart = distance(&checkpoint(&pairs), &checkpoint(&one));
    assert!(apart < ROUNDING, "{apart:e}");
}

pub fn pictures(folder: &Path, count: u8) {
    std::fs::create_dir_all(folder).unwrap();
    for index in 0..count {
        let pixel = |x: u32, y: u32| image::Rgb([(x * 16) as u8, (y * 16) as u8, index * 3]);
        image::RgbImage::from_fn(16, 16, pixel).save(folder.join(format!("{index:03}.png"))).unwrap();
    }
}

#[test]
fn processes_that_were_not_started_alike_are_refused_by_name() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let refused = |first: &[&str], second: (&str, &[&str])| {
        let out = folder.path().join("run");
        let mut job = mpirun_raw();
        job.args(["-n", "1", PROGRAM]).args(SMALL).arg(&out).args(SHORT).args(first);
        job.args([":", "-n", "1", second.0]).args(SMALL).arg(&out).args(SHORT).args(second.1);
        let (said, _) = fail(&mut job);
        assert!(!out.join("checkpoints").exists(), "nothing was begun: {said}");
        said
    };
    let said = refused(&[], (PROGRAM, &["--seed", "7"]));
    assert!(said.contains("error: rank 1 on ") && said.contains("the setting seed 7, rank 0 has 0"), "{said}");
    let said = refused(&["--device", "cpu-exact"], (PROGRAM, &[]));
    assert!(said.contains("the setting train.device (--device) \"cpu\", rank 0 has \"cpu-exact\""), "{said}");
    let said = refused(&[], (PROGRAM, &["--config", "no-such-recipe.toml"]));
    assert!(said.contains("no-such-recipe.toml"), "{said}");

    // Another version: the same program with other letters in its name.
    let mut bytes = std::fs::read(PROGRAM).unwrap();
    let (old, new) = (b"sogclr 0.1.0 (", b"sogclr 0.0.9 (");
    let places: Vec<usize> = (0..bytes.len() - old.len()).filter(|at| &bytes[*at..][..old.len()] == old).collect();
    assert!(!places.is_empty(), "the program knows its version");
    places.into_iter().for_each(|at| bytes[at..][..new.len()].copy_from_slice(new));
    let older = folder.path().join("sogclr-older");
    std::fs::write(&older, bytes).unwrap();
    std::fs::set_permissions(&older, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let said = refused(&[], (older.to_str().unwrap(), &[]));
    assert!(said.contains("error: rank 1 on ") && said.contains("the program \"sogclr 0.0.9"), "{said}");
}

#[test]
fn other_data_is_refused_by_name() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let refused = |b: &Path| {
        let mut job = mpirun_raw();
        for (index, data) in [&a, b].into_iter().enumerate() {
            job.args((index > 0).then_some(":")).args(["-n", "1", PROGRAM, "pretrain"]).arg(data);
            job.args(["--batch", "8", "--epochs", "1", "--encoder", "resnet8", "--image-size", "8", "--out"]);
            job.arg(folder.path().join("run"));
        }
        fail(&mut job).0
    };
    pictures(&a, 32);
    pictures(&b, 32);
    // An image of the other process's part, with other content.
    std::fs::copy(b.join("030.png"), b.join("003.png")).unwrap();
    let said = refused(&b);
    assert!(said.contains("rank 1 on ") && said.contains("003.png has other content"), "{said}");
    std::fs::remove_file(b.join("031.png")).unwrap();
    let said = refused(&b);
    assert!(said.contains("rank 1 on ") && said.contains("samples, 31, rank 0 has 32"), "{said}");
    let said = refused(&folder.path().join("nowhere"));
    assert!(said.contains("rank 1 on ") && said.contains("nowhere"), "{said}");
}

#[test]
fn a_batch_that_the_processes_cannot_share_is_refused() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let out = folder.path().join("run");
    let (said, code) = fail(mpirun(3).args(SMALL).arg(&out));
    assert!(said.contains("train.batch (--batch) is 16, which 3 processes cannot share: try 15"), "{said}");
    assert_eq!(code, Some(2));
    assert!(!out.exists());
    let (said, _) = fail(mpirun(2).arg("demo"));
    assert!(said.contains("this is for one process, 2 were started"), "{said}");
}

/// A killed process ends all; the run goes on with as many processes or with others.
#[test]
fn a_killed_process_ends_the_job_and_the_run_resumes() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let [whole, killed, other] = ["whole", "killed", "other"].map(|name| folder.path().join(name));
    succeed(mpirun(2).args(SMALL).arg(&whole).args(LONG));
    let mut job = Job::start(mpirun(2).args(SMALL).arg(&killed).args(LONG));
    job.wait_for(&killed, 100);
    signal(job.process(1), "-KILL");
    let began = std::time::Instant::now();
    let (said, code) = job.end();
    assert!(code != Some(0) && began.elapsed().as_secs() < 10, "{code:?} after {:?}: {said}", began.elapsed());
    assert!(Command::new("cp").arg("-r").args([&killed, &other]).status().unwrap().success());
    succeed(mpirun(2).arg("resume").arg(&killed));
    assert_eq!(encoder(&killed), encoder(&whole));
    succeed(mpirun(4).arg("resume").arg(&other));
    let apart = distance(&checkpoint(&other), &checkpoint(&whole));
    println!("resumed with another number of processes: {apart:.1e}");
    assert!(apart < 1e-3, "{apart:e}");
}

/// Features by slices, cells of a race by processes: what one process writes.
#[test]
fn evaluation_features_and_races_are_shared_and_the_same() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let run = folder.path().join("run");
    succeed(alone().args(SMALL).arg(&run).args(SHORT));
    let copy = folder.path().join("copy");
    assert!(Command::new("cp").arg("-r").args([&run, &copy]).status().unwrap().success());
    let embedded = |job: &mut Command, name: &str| {
        let out = folder.path().join(name);
        let said = succeed(job.arg("embed").arg(&run).arg("--out").arg(&out));
        assert_eq!(said.matches("96 rows").count(), 1, "{said}");
        std::fs::read(out).unwrap()
    };
    assert_eq!(embedded(&mut alone(), "one"), embedded(&mut mpirun(2), "two"));
    for verb in ["linear", "knn"] {
        let table = |said: String| said.lines().filter(|line| line.contains('%')).collect::<Vec<_>>().join("\n");
        let one = table(succeed(alone().args(["eval", verb]).arg(&run)));
        assert_eq!(one, table(succeed(mpirun(3).args(["eval", verb]).arg(&copy))));
    }
    let race = folder.path().join("race");
    let race = |job: &mut Command| {
        let flags = ["--limit", "48", "--batch", "8", "--epochs", "1", "--encoder", "resnet8", "--image-size", "8"];
        job.args(["compare", "--seeds", "2", "--methods", "sogclr,simclr", "--out"]).arg(&race).args(flags);
        succeed(job)
    };
    let said = race(&mut mpirun(2));
    assert!(said.contains("sogclr") && said.contains("simclr") && said.contains("tables: "), "{said}");
}
