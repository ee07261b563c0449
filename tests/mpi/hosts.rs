//! Network namespaces as machines.

use super::{Job, LONG, PROGRAM, SHORT, SMALL, alone, checkpoint, distance, mpirun_raw, succeed, turn};
use std::path::Path;
use std::process::Command;

pub fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n")
}

/// Two machines on one wire; gone with this.
struct Hosts(String);

impl Hosts {
    fn new() -> Self {
        let hosts = Self(format!("sogclr-{}", std::process::id()));
        hosts.ip(&["netns", "add", &hosts.name(1)]);
        hosts.ip(&["netns", "add", &hosts.name(2)]);
        let (one, two) = (hosts.name(1), hosts.name(2));
        hosts.ip(&["link", "add", "wire", "netns", &one, "type", "veth", "peer", "name", "wire", "netns", &two]);
        for index in [1, 2] {
            let (name, address) = (hosts.name(index), format!("10.83.0.{index}/24"));
            hosts.ip(&["-n", &name, "address", "add", &address, "dev", "wire"]);
            hosts.ip(&["-n", &name, "link", "set", "wire", "up"]);
            hosts.ip(&["-n", &name, "link", "set", "lo", "up"]);
        }
        hosts
    }

    fn name(&self, index: usize) -> String {
        format!("{}-{index}", self.0)
    }

    fn ip(&self, arguments: &[&str]) {
        let done = Command::new("ip").args(arguments).status().expect("iproute2 is there");
        assert!(done.success(), "ip {arguments:?}");
    }

    /// A job of one process on each machine, which have names of their own.
    fn mpirun(&self, folder: &Path) -> Command {
        let agent = folder.join("agent");
        let script = format!(
            "#!/bin/sh\nindex=${{1##*.}}\nshift\nexec ip netns exec {}-$index unshare --uts sh -c \"hostname host$index; $*\"\n",
            self.0
        );
        std::fs::write(&agent, script).unwrap();
        std::fs::set_permissions(&agent, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let plain = mpirun_raw();
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            &self.name(1),
            "unshare",
            "--uts",
            "sh",
            "-c",
            "hostname host1; exec \"$@\"",
            "sh",
        ]);
        command.arg(plain.get_program()).args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["--mca", "plm_rsh_agent"]).arg(agent).args(["--mca", "btl", "tcp,self"]);
        command.args(["--mca", "btl_tcp_if_include", "10.83.0.0/24", "--mca", "oob_tcp_if_include", "10.83.0.0/24"]);
        // Open MPI's own daemons notice a dead link by these alone.
        for (what, seconds) in [("time", "3"), ("intvl", "1"), ("probes", "3")] {
            command.args(["--mca", &format!("oob_tcp_keepalive_{what}"), seconds]);
        }
        command.args(["--host", "10.83.0.1,10.83.0.2", "-n", "2", PROGRAM]);
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in [self.name(1), self.name(2)] {
            let left = Command::new("ip").args(["netns", "pids", &name]).output();
            let left = left.map(|left| String::from_utf8_lossy(&left.stdout).into_owned()).unwrap_or_default();
            if !left.is_empty() {
                let _ = Command::new("kill").arg("-KILL").args(left.split_whitespace()).status();
            }
            let _ = Command::new("ip").args(["netns", "delete", &name]).status();
        }
    }
}

#[test]
fn two_machines_train_one_run_and_notice_a_cut_wire() {
    if !is_root() {
        return println!("skipped: machines of one's own (network namespaces) need root");
    }
    let (_turn, folder) = (turn(), tempfile::tempdir().unwrap());
    let hosts = Hosts::new();
    let [one, two, cut] = ["one", "two", "cut"].map(|name| folder.path().join(name));
    succeed(alone().args(SMALL).arg(&one).args(SHORT));
    succeed(hosts.mpirun(folder.path()).args(SMALL).arg(&two).args(SHORT));
    let apart = distance(&checkpoint(&two), &checkpoint(&one));
    assert!(apart < 1e-4, "{apart:e}");

    let mut job = Job::start(hosts.mpirun(folder.path()).args(SMALL).arg(&cut).args(LONG).args(["--watchdog", "1"]));
    job.wait_for(&cut, 20);
    hosts.ip(&["-n", &hosts.name(2), "link", "set", "wire", "down"]);
    let began = std::time::Instant::now();
    let (said, code) = job.end();
    assert!(code != Some(0) && began.elapsed().as_secs() < 60, "{code:?} after {:?}: {said}", began.elapsed());
    assert!(said.contains("error: rank 1 on host2 does not answer"), "{said}");
    // The processes see that mpirun is gone a moment later.
    std::thread::sleep(std::time::Duration::from_secs(3));
    succeed(alone().arg("resume").arg(&cut));
}
