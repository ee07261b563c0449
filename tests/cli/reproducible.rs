//! The same seed and configuration give the same bytes, whatever the number of threads.

use crate::{sogclr, train};
use sogclr::method::MethodConfig;
use std::path::Path;

fn encoder(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("encoder.safetensors")).unwrap()
}

#[test]
fn one_thread_and_two_give_the_same_bytes_and_another_seed_does_not() {
    let root = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| {
        let out = root.path().join(name);
        train(&out, more);
        encoder(&out)
    };
    for (method, more) in [
        ("sogclr", &[][..]),
        ("simclr", &["--micro-batch", "4"]),
        ("moco", &["--set", "method.norm_groups=2"]),
        ("nnclr", &[]),
        ("infomin", &[]),
    ] {
        let run = |name: &str, arguments: &[&str]| {
            run(&format!("{method}-{name}"), &[&["--method", method], more, arguments].concat())
        };
        let (one, two) = (run("1", &["--threads", "1"]), run("2", &["--threads", "2"]));
        assert!(one == two, "{method}: the number of threads changed the result");
        assert!(one != run("3", &["--seed", "1"]), "{method}: the seed must matter");
    }
}

#[test]
fn every_method_resumes_to_the_same_bytes() {
    let root = tempfile::tempdir().unwrap();
    let is_pairs = |name: &str| ["clip", "siglip", "fastclip"].contains(&name) || name.ends_with("-pairs");
    let of_views = MethodConfig::NAMES.iter().filter(|name| !is_pairs(name));
    let plain = of_views.map(|name| (*name, *name, &[][..]));
    let more: [(&str, &str, &[&str]); 9] = [
        ("simo without momentum", "simo", &["--set", "method.momentum=0"]),
        ("moco in groups", "moco", &["--set", "method.norm_groups=2", "--set", "method.queue=20"]),
        ("nnclr with adamw", "nnclr", &["--set", "optimizer.kind=adamw"]),
        ("multi-crop", "sogclr", &["--views", "2x8+2x6"]),
        ("micro-batches", "infomin", &["--micro-batch", "4"]),
        ("cosine gamma", "sogclr", &["--set", "method.gamma={kind='cosine', min=0.2, epochs=2}"]),
        ("adaptive gamma", "sogclr", &["--set", "method.gamma={kind='adaptive', offset=1.0}"]),
        ("with labels", "sogclr", &["--set", "method.by_label=true", "--set", "method.variant='algorithm1'"]),
        ("weighted dcl", "dcl", &["--set", "method.sigma=0.5"]),
    ];
    for (name, method, settings) in plain.chain(more) {
        let run = root.path().join(name);
        // A checkpoint after every step, of which the newest two stay.
        let often = ["--keep-every", "1", "--set", "train.checkpoint_minutes=0"];
        train(&run, &[&["--method", method], &often[..], settings].concat());
        let step = |step: usize| run.join(format!("checkpoints/step-{step:09}.safetensors"));
        let last = step(12);
        let whole = (std::fs::read(&last).unwrap(), encoder(&run));
        // As if the last step had never been saved: goes on inside the epoch.
        assert!(step(11).exists(), "{name}");
        std::fs::remove_file(&last).unwrap();
        sogclr().arg("resume").arg(&run).assert().success();
        assert!((std::fs::read(&last).unwrap(), encoder(&run)) == whole, "{name}, inside an epoch");
        // As if the second epoch had never been saved.
        std::fs::remove_file(&last).unwrap();
        std::fs::remove_file(step(11)).unwrap();
        sogclr().arg("resume").arg(&run).assert().success();
        assert!((std::fs::read(&last).unwrap(), encoder(&run)) == whole, "{name}");
    }
}
