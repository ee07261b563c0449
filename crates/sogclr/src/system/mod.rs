//! What the process has used so far, what the machine has, and threads that stay awake.

mod awake;

pub use awake::awake;

use std::path::Path;

/// User and system time of all threads, in seconds; `None` where the system does not tell.
pub fn cpu_seconds() -> Option<f64> {
    #[cfg(unix)]
    {
        let usage = resource_usage();
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Some(seconds(usage.ru_utime) + seconds(usage.ru_stime))
    }
    #[cfg(not(unix))]
    None
}

/// The most memory that was resident at once, in MiB; `None` where the system does not tell.
pub fn peak_rss_mb() -> Option<f64> {
    #[cfg(unix)]
    {
        // KiB on Linux, bytes on macOS.
        let per_mb = if cfg!(target_os = "macos") { 1024.0 * 1024.0 } else { 1024.0 };
        Some(resource_usage().ru_maxrss as f64 / per_mb)
    }
    #[cfg(not(unix))]
    None
}

/// The memory that is resident now, in MiB; `None` where the system does not tell.
pub fn rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
}

/// What the system calls the processor.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    name.map_or(std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

#[cfg(unix)]
fn resource_usage() -> libc::rusage {
    // SAFETY: a zeroed rusage is a valid one, and getrusage fills it.
    unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    }
}

/// Memory that can be had without swapping, and without being ended by the limit of a container or a batch system, where the
/// system tells.
pub fn free_memory_gb() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let free = line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024e-9;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    Some(free_in_group(Path::new("/sys/fs/cgroup"), own).map_or(free, |left| left.min(free)))
}

/// What the control group `own` and those around it leave, below `root`; none where none of them has a limit.
fn free_in_group(root: &Path, own: &str) -> Option<f64> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let left = |group: &Path| {
        let read = |name: &str| std::fs::read_to_string(root.join(group).join(name)).ok();
        let (most, used) = (number(&read("memory.max")?)?, number(&read("memory.current")?)?);
        // Files that are cached count as used, and give way.
        let cached = read("memory.stat").unwrap_or_default();
        let cached = cached.lines().find_map(|line| number(line.strip_prefix("inactive_file ")?));
        Some((most - used + cached.unwrap_or(0.0)).max(0.0) * 1e-9)
    };
    Path::new(own).ancestors().filter_map(left).min_by(f64::total_cmp)
}

/// The machine's name.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_else(|| "localhost".into());
    name.trim().to_owned()
}

/// The cores that this process may use, as the system writes them; empty where it does not tell.
pub fn cpus() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    allowed.unwrap_or_default().trim().to_owned()
}

/// Cores of the machine, whether or not this process may use them, where the system tells.
pub fn cores() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    Some(text.lines().filter(|line| line.starts_with("processor")).count()).filter(|&count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_container_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::create_dir_all(root.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(root.path().join(name), text).unwrap();
        };
        assert_eq!(free_in_group(root.path(), "job/step"), None);
        write("job/step/memory.max", "max\n");
        write("job/step/memory.current", "1000000000\n");
        assert_eq!(free_in_group(root.path(), "job/step"), None);
        write("job/memory.max", "4000000000\n");
        write("job/memory.current", "3000000000\n");
        write("job/memory.stat", "anon 5\ninactive_file 500000000\n");
        assert_eq!(free_in_group(root.path(), "job/step"), Some(1.5));
    }
}
