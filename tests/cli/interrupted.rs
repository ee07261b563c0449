//! Nothing is lost: kill -9 and Ctrl-C at several moments, changed data, foreign checkpoints, a full disk.

use crate::{TINY, failure, sogclr, train};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const EVERY_STEP: &[&str] = &["--set", "train.checkpoint_minutes=0", "--epochs", "8"];

fn spawn(out: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sogclr"))
        .args(TINY)
        .args(EVERY_STEP)
        .arg("--out")
        .arg(out)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn lines(run: &Path) -> usize {
    std::fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}

fn wait_for_lines(run: &Path, count: usize) {
    let began = Instant::now();
    while lines(run) < count {
        assert!(began.elapsed() < Duration::from_secs(60), "training did not reach step {count}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn steps(run: &Path) -> Vec<(u64, String)> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let parse = |line: &str| {
        let metric: serde_json::Value = serde_json::from_str(line).unwrap();
        (metric["step"].as_u64().unwrap(), metric["loss"].to_string())
    };
    text.lines().map(parse).collect()
}

#[test]
fn a_run_killed_at_several_moments_ends_with_the_same_bytes() {
    let root = tempfile::tempdir().unwrap();
    let whole = root.path().join("whole");
    train(&whole, EVERY_STEP);
    let broken = root.path().join("broken");
    let mut child = spawn(&broken);
    for reached in [1, 9, 23] {
        wait_for_lines(&broken, reached);
        child.kill().unwrap();
        child.wait().unwrap();
        // A half-written file, as a crash inside a write would leave it, must not matter.
        std::fs::write(broken.join("checkpoints/step-000000999.safetensors.7.partial"), b"half").unwrap();
        child = Command::new(env!("CARGO_BIN_EXE_sogclr"))
            .arg("resume")
            .arg(&broken)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
    }
    assert!(child.wait().unwrap().success());
    let file = |run: &Path| std::fs::read(run.join("encoder.safetensors")).unwrap();
    assert!(file(&whole) == file(&broken), "the resumed run differs");
    assert_eq!(steps(&whole), steps(&broken), "metrics have no gap, no repeat and the same losses");
}

/// The checkpoint says bf16; its config.toml may say another precision from there on, and the user is told what that costs.
#[test]
fn a_run_with_bf16_activations_is_resumed_exactly_or_with_a_sentence() {
    let bf16 = [EVERY_STEP, &["--precision", "bf16"]].concat();
    let root = tempfile::tempdir().unwrap();
    let [whole, broken, f32] = ["whole", "broken", "f32"].map(|name| root.path().join(name));
    train(&whole, &bf16);
    train(&f32, EVERY_STEP);
    let cut = |run: &Path| {
        train(run, &bf16);
        let mut steps: Vec<_> =
            run.join("checkpoints").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        steps.sort();
        std::fs::remove_file(steps.pop().unwrap()).unwrap();
    };
    let resumed = |run: &Path| {
        let output = sogclr().arg("resume").arg(run).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    };
    cut(&broken);
    assert!(!resumed(&broken).contains("activations"));
    let file = |run: &Path| std::fs::read(run.join("encoder.safetensors")).unwrap();
    assert!(file(&whole) == file(&broken), "the resumed run differs");
    assert!(file(&whole) != file(&f32), "the precision shows");

    let changed = root.path().join("changed");
    cut(&changed);
    let config = std::fs::read_to_string(changed.join("config.toml")).unwrap();
    assert!(config.contains("precision = \"bf16\""), "{config}");
    std::fs::write(changed.join("config.toml"), config.replace("precision = \"bf16\"\n", "")).unwrap();
    let said = resumed(&changed);
    assert!(said.contains("stored as bf16 until now and are f32 from here"), "{said}");
    assert!(file(&whole) != file(&changed), "it went on in f32");

    // The flag does what the edit does, and the folder says so from then on.
    let by_flag = root.path().join("by_flag");
    cut(&by_flag);
    let resume = |flag: &str| {
        let output = sogclr().arg("resume").arg(&by_flag).args(["--precision", flag]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = resume("f32");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("stored as bf16 until now and are f32 from here: it will not end with the bytes"), "{said}");
    assert!(file(&changed) == file(&by_flag), "an edit and a flag are one change");
    let config = || std::fs::read_to_string(by_flag.join("config.toml")).unwrap();
    assert!(!config().contains("bf16"), "{}", config());
    // A run that is complete has nothing that could change.
    let (code, said) = resume("bf16");
    assert_eq!((code, said.contains("stored as"), config().contains("bf16")), (Some(0), false, false), "{said}");
    let (code, said) = resume("f16");
    assert_eq!(code, Some(2), "{said}");
}

/// Every image and text has a u and a temperature of its own by then.
#[test]
fn pairs_resumed_inside_an_epoch_end_with_the_same_bytes() {
    resume_pairs(&["--encoder", "clip-xs", "--set", "encoder.width=0.25"]);
}

#[test]
fn pairs_of_transformers_in_bf16_are_resumed_exactly() {
    resume_pairs(&["--encoder", "clip-vit-xs", "--set", "encoder.width=0.33333333", "--precision", "bf16"]);
}

fn resume_pairs(encoder: &[&str]) {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    sogclr()
        .args(["pretrain", "--pairs", "emoji", "--limit", "48", "--image-size", "32"])
        .args(encoder)
        .args(["--batch", "8", "--epochs", "2", "--set", "train.checkpoint_minutes=0"])
        .args(["--set", "text={ width = 16, layers = 1, heads = 2, context = 12, vocabulary = 49408 }"])
        .args(["--method", "fastclip", "--set", "method.learned.kind=individual", "--out"])
        .arg(&run)
        .assert()
        .success();
    let files = ["checkpoints/step-000000012.safetensors", "encoder.safetensors"].map(|name| run.join(name));
    let read = || files.each_ref().map(|file| std::fs::read(file).unwrap());
    let whole = read();
    // The newest is now that of step 11, the last but one of its epoch.
    files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    sogclr().arg("resume").arg(&run).assert().success();
    assert!(whole == read(), "the resumed run differs");
}

#[test]
fn ctrl_c_writes_a_checkpoint_and_says_how_to_go_on() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    let child = spawn(&run);
    wait_for_lines(&run, 5);
    kill(&child, "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "a script must not take it for finished");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("sogclr resume"), "{text}");
    let output = sogclr().args(["eval", "knn"]).arg(&run).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("not finished"), "{text}");
    sogclr().arg("resume").arg(&run).assert().success();
    assert_eq!(lines(&run), 48);
}

fn kill(child: &Child, signals: &str) {
    let script = format!("for signal in {signals}; do kill -$signal {}; done", child.id());
    Command::new("sh").args(["-c", &script]).status().unwrap();
}

/// `timeout` signals a process twice, itself and as one of its group. Two different ones, as two of a kind may become one.
#[test]
fn two_signals_at_once_are_one_wish() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    let child = spawn(&run);
    wait_for_lines(&run, 5);
    kill(&child, "TERM INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("sogclr resume"), "a checkpoint was written: {text}");
}

#[test]
fn under_nohup_the_end_of_the_terminal_does_not_end_training() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    let mut child = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_sogclr")])
        .args(TINY)
        .args(EVERY_STEP)
        .arg("--out")
        .arg(&run)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_lines(&run, 5);
    kill(&child, "HUP");
    assert!(child.wait().unwrap().success());
    assert_eq!(lines(&run), 48);
}

/// `| head` and a closed terminal end the reader first.
#[test]
fn a_reader_that_goes_away_does_not_end_training() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    let mut child = Command::new(env!("CARGO_BIN_EXE_sogclr"))
        .args(TINY)
        .arg("--out")
        .arg(&run)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert!(child.wait().unwrap().success());
    assert!(run.join("checkpoints/step-000000012.safetensors").exists());
}

#[test]
fn resume_follows_moved_data_and_refuses_changed_data_and_foreign_checkpoints() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    std::fs::create_dir(&data).unwrap();
    for i in 0..8_u8 {
        image::RgbImage::from_pixel(12, 12, image::Rgb([i * 20, 9, 9])).save(data.join(format!("{i}.png"))).unwrap();
    }
    let run = root.path().join("run");
    let arguments = ["pretrain", "--image-size", "8", "--encoder", "resnet8", "--batch", "4", "--epochs", "1"];
    sogclr().args(arguments).arg(&data).arg("--out").arg(&run).assert().success();

    let (config, moved) = (run.join("config.toml"), root.path().join("moved"));
    std::fs::rename(&data, &moved).unwrap();
    let (code, text) = failure(sogclr().arg("resume").arg(&run));
    assert!(code == 2 && text.contains("if it was moved") && text.contains("config.toml"), "{code} {text}");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace(data.to_str().unwrap(), moved.to_str().unwrap())).unwrap();
    sogclr().arg("resume").arg(&run).assert().success();
    let data = moved;

    image::RgbImage::from_pixel(12, 12, image::Rgb([1, 2, 3])).save(data.join("3.png")).unwrap();
    let (code, text) = failure(sogclr().arg("resume").arg(&run));
    assert!(code == 2 && text.contains("3.png has other content"), "{code} {text}");
    std::fs::remove_file(data.join("3.png")).unwrap();
    let (code, text) = failure(sogclr().arg("resume").arg(&run));
    assert!(code == 2 && text.contains("3.png is gone"), "{code} {text}");

    let tiny = root.path().join("tiny");
    train(&tiny, &[]);
    let path = tiny.join("config.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, config.replace("resnet8", "resnet14")).unwrap();
    for (verb, words) in
        [(&["resume"][..], "encoder.name was \"resnet8\" and is \"resnet14\""), (&["eval", "knn"], "another model")]
    {
        let (code, text) = failure(sogclr().args(verb).arg(&tiny));
        assert!(code == 2 && text.contains(words), "{code} {text}");
    }
    std::fs::write(&path, config.replace("seed = 0", "seed = 5")).unwrap();
    let (code, text) = failure(sogclr().arg("resume").arg(&tiny));
    assert!(code == 2 && text.contains("config.toml was edited") && text.contains("seed was 0 and is 5"), "{text}");
    // What decides nothing may change.
    let free = config.replace("checkpoint_minutes = 10.0", "checkpoint_minutes = 5.0");
    assert_ne!(free, config);
    std::fs::write(&path, free).unwrap();
    sogclr().arg("resume").arg(&tiny).assert().success();
}

#[test]
fn a_full_disk_leaves_the_last_checkpoint_intact() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    train(&run, &["--keep-every", "1"]);
    // Go back to epoch 1, then let every file above 20 kB fail as a full disk would.
    std::fs::remove_file(run.join("checkpoints/step-000000012.safetensors")).unwrap();
    let before = std::fs::read(run.join("encoder.safetensors")).unwrap();
    let script =
        format!("trap '' XFSZ; ulimit -f 20; exec '{}' resume '{}'", env!("CARGO_BIN_EXE_sogclr"), run.display());
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write") && text.contains("intact"), "{text}");
    assert!(before == std::fs::read(run.join("encoder.safetensors")).unwrap());
    sogclr().arg("resume").arg(&run).assert().success();
    assert!(before == std::fs::read(run.join("encoder.safetensors")).unwrap(), "the same end as before");
}

#[test]
fn a_broken_newest_checkpoint_falls_back_to_the_one_before() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    train(&run, &["--keep-every", "1"]);
    let whole = std::fs::read(run.join("encoder.safetensors")).unwrap();
    std::fs::write(run.join("checkpoints/step-000000012.safetensors"), b"torn").unwrap();
    std::fs::write(run.join("encoder.safetensors"), b"torn").unwrap();
    sogclr().arg("resume").arg(&run).assert().success();
    assert!(whole == std::fs::read(run.join("encoder.safetensors")).unwrap());
}

#[test]
fn an_edited_configuration_is_checked_again() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    train(&run, &[]);
    let path = run.join("config.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    for (from, to, words) in [
        ("batch = 8", "batch = 0", "train.batch"),
        ("temperature = 0.2", "temperature = 0.0", "method.temperature"),
        ("kind = \"lars\"", "kind = \"sgd\"\nnesterov = false", "trust"),
    ] {
        assert!(config.contains(from), "{config}");
        std::fs::write(&path, config.replace(from, to)).unwrap();
        let (code, text) = failure(sogclr().arg("resume").arg(&run));
        assert!(code == 2 && text.contains(words), "{to}: {code} {text}");
    }
}

#[test]
fn two_processes_cannot_train_one_run() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    let mut child = spawn(&run);
    wait_for_lines(&run, 1);
    let (code, text) = failure(sogclr().arg("resume").arg(&run));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(code == 1 && text.contains("in use"), "{code} {text}");
}
