//! What a job does when something dies, hangs or is told to end.

use super::{Job, LONG, SMALL, encoder, mpirun, mpirun_raw, signal, succeed, turn};
use super::{PROGRAM, fail};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_process_that_hangs_is_named_by_the_watchdog() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let out = folder.path().join("run");
    let mut job = Job::start(mpirun(2).args(SMALL).arg(&out).args(LONG).args(["--watchdog", "2"]));
    job.wait_for(&out, 20);
    signal(job.process(1), "-STOP");
    let began = Instant::now();
    let (said, code) = job.end();
    assert!(code != Some(0) && began.elapsed() < Duration::from_secs(30), "{code:?}: {said}");
    assert!(said.contains("error: rank 1 on ") && said.contains("does not answer: the others have waited"), "{said}");
    // mpirun may be gone a moment before its processes.
    std::thread::sleep(Duration::from_secs(2));
    succeed(mpirun(2).arg("resume").arg(&out));
}

/// SIGUSR1, which mpirun passes on at once; SIGTERM, which it passes on after a while; and a checkpoint that takes longer than
/// the second which Open MPI leaves unless told otherwise.
#[test]
fn told_to_end_a_job_writes_a_checkpoint_however_long_it_takes() {
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let whole = folder.path().join("whole");
    succeed(mpirun(2).args(SMALL).arg(&whole).args(LONG));
    let slow = slow_disk(folder.path());
    for (told, epochs) in [("-USR1", "60"), ("-TERM", "5000"), ("-INT", "5000")] {
        let out = folder.path().join(told);
        let mut job = mpirun_raw();
        job.args(["--mca", "odls_base_sigkill_timeout", "3"]).args(["-x", &format!("LD_PRELOAD={}", slow.display())]);
        job.args(["-n", "2", PROGRAM]).args(SMALL).arg(&out).args(LONG);
        job.args(["--set", "train.checkpoint_minutes=60", "--epochs", epochs]);
        let mut job = Job::start(&mut job);
        job.wait_for(&out, 0);
        signal(job.mpirun(), told);
        let (said, code) = job.end();
        assert!(said.contains("stopped, checkpoint written; continue with: sogclr resume"), "{told} {code:?}: {said}");
        let newest = super::checkpoint(&out);
        assert!(!newest.ends_with("step-000000000.safetensors"), "{newest:?}");
        if epochs == "60" {
            succeed(mpirun(2).arg("resume").arg(&out));
            assert_eq!(encoder(&out), encoder(&whole), "{told}");
        }
    }
}

/// A library with which a checkpoint takes 1.6 s: four files and folders are synchronised.
fn slow_disk(folder: &Path) -> std::path::PathBuf {
    let (source, library) = (folder.join("slow.c"), folder.join("slow.so"));
    std::fs::write(&source, "#include <unistd.h>\nint fsync(int file) { (void)file; usleep(400000); return 0; }\n")
        .unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap();
    assert!(built.success());
    library
}

#[test]
fn a_full_disk_of_the_first_process_ends_all() {
    if !super::hosts::is_root() {
        return println!("skipped: a small disk of its own needs root");
    }
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=600k", "tmpfs"]).arg(&disk).status().unwrap();
    assert!(mounted.success());
    let (said, code) = fail(mpirun(2).args(SMALL).arg(disk.join("run")).args(LONG));
    let unmounted = Command::new("umount").arg(&disk).status().unwrap();
    assert!(unmounted.success());
    assert!(said.contains("error: cannot write ") && said.contains("No space left"), "{code:?}: {said}");
}
