//! The same seed and configuration give the same bytes, whatever the number of threads.

use crate::train;
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
