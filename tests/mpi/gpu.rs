//! Processes that train on GPUs, or on the one that there is (Mesa's software one will do).

use super::{SHORT, SMALL, checkpoint, distance, mpirun, succeed, turn};

#[test]
fn wgpu_processes_train_one_run() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    for (out, ranks) in [(&one, 1), (&two, 2)] {
        succeed(mpirun(ranks).args(SMALL).arg(out).args(SHORT).args(["--device", "wgpu"]));
    }
    let apart = distance(&checkpoint(&two), &checkpoint(&one));
    println!("2 processes on GPUs: {apart:.1e} from one");
    assert!(apart < 1e-4, "{apart:e}");
}
