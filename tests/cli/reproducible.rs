//! The same seed and configuration give the same bytes, whatever the number of threads.

use crate::{sogclr, train};
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
    for method in ["sogclr", "simclr"] {
        let one = run(&format!("{method}-1"), &["--threads", "1", "--method", method]);
        let two = run(&format!("{method}-2"), &["--threads", "2", "--method", method]);
        assert!(one == two, "{method}: the number of threads changed the result");
        let other = run(&format!("{method}-3"), &["--seed", "1", "--method", method]);
        assert!(one != other, "{method}: the seed must matter");
    }
}

#[test]
fn every_method_resumes_to_the_same_bytes() {
    let root = tempfile::tempdir().unwrap();
    for method in ["sogclr", "simclr", "dcl", "flatnce", "simo", "isogclr", "debiased", "supcon"] {
        let run = root.path().join(method);
        train(&run, &["--method", method, "--keep-every", "1"]);
        let last = run.join("checkpoints/step-000000012.safetensors");
        let whole = (std::fs::read(&last).unwrap(), encoder(&run));
        // As if the second epoch had never been saved.
        std::fs::remove_file(&last).unwrap();
        sogclr().arg("resume").arg(&run).assert().success();
        assert!((std::fs::read(&last).unwrap(), encoder(&run)) == whole, "{method}");
    }
}
