//! Linux: `/proc/meminfo`, control groups, the limit of locked memory. Parsers take text, so tests can feed them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::plan::{Host, Os, Size};

pub fn host() -> Host {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo_bytes(&meminfo, "MemTotal").unwrap_or(0);
    let available = meminfo_bytes(&meminfo, "MemAvailable").unwrap_or(0).min(total);
    let version = fs::read_to_string("/proc/version").unwrap_or_default();
    let group = container_limit(Path::new("/sys/fs/cgroup"), &fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    let container = group.filter(|(limit, _)| *limit < total);
    Host {
        os: if version.contains("icrosoft") { Os::Wsl } else { Os::Linux },
        ram_total: Size(total),
        ram_available: Size(available),
        container_limit: container.map(|(limit, _)| Size(limit)),
        container_used: container.map(|(limit, used)| Size(used.min(limit))),
        memlock_limit: memlock_limit().map(Size),
        ..super::unknown_host()
    }
}

/// `MemAvailable:   123 kB`
pub fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The tightest memory limit of the group of this process and of every group above it, and what is used there.
/// `root` is where the groups are mounted, `membership` is `/proc/self/cgroup`.
pub fn container_limit(root: &Path, membership: &str) -> Option<(u64, u64)> {
    let mut tightest: Option<(u64, u64)> = None;
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        // Version 2 has one line without controllers; version 1 has one for `memory`.
        let (base, limit, used) = if controllers.is_empty() {
            (root.to_path_buf(), "memory.max", "memory.current")
        } else if controllers.split(',').any(|c| c == "memory") {
            (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        let found = groups_up(&base, path).into_iter().filter_map(|g| Some((number(&g.join(limit))?, group_used(&g, used))));
        tightest = found.chain(tightest).min_by_key(|(limit, _)| *limit);
    }
    tightest
}

/// The group's folder and those above it, down to the mount itself (inside a container the path may not exist).
fn groups_up(base: &Path, path: &str) -> Vec<PathBuf> {
    let mut groups = vec![base.to_path_buf()];
    let mut folder = base.to_path_buf();
    for part in path.split('/').filter(|p| !p.is_empty() && *p != "..") {
        folder = folder.join(part);
        groups.push(folder.clone());
    }
    groups
}

/// What cannot be given back: the page cache that a group could drop is not counted.
fn group_used(group: &Path, file: &str) -> u64 {
    let used = number(&group.join(file)).unwrap_or(0);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let field = |name: &str| stat.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
    used.saturating_sub(field("inactive_file").or_else(|| field("total_inactive_file")).unwrap_or(0))
}

/// `None` where there is no limit.
fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer, and the call keeps no reference to it.
    let outcome = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (outcome == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// `max` means no limit; version 1 writes a huge number instead.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse::<u64>().ok().filter(|n| *n < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_in_kib() {
        let text = "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:   8192 kB\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable"), Some(8 << 20));
        assert_eq!(meminfo_bytes(text, "Mem"), None);
        assert_eq!(meminfo_bytes("MemTotal: x kB", "MemTotal"), None);
    }

    fn write(folder: &Path, name: &str, text: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(name), text).unwrap();
    }

    #[test]
    fn the_tightest_group_of_version_2_counts() {
        let root = tempfile::tempdir().unwrap();
        let (outer, inner) = (root.path().join("a"), root.path().join("a/b"));
        write(&outer, "memory.max", "1000\n");
        write(&outer, "memory.current", "300\n");
        write(&outer, "memory.stat", "anon 1\ninactive_file 100\n");
        write(&inner, "memory.max", "max\n");
        assert_eq!(container_limit(root.path(), "0::/a/b\n"), Some((1000, 200)));
        write(&inner, "memory.max", "500\n");
        assert_eq!(container_limit(root.path(), "0::/a/b\n"), Some((500, 0)));
        assert_eq!(container_limit(root.path(), "0::/c\n"), None);
    }

    #[test]
    fn version_1_has_a_line_for_memory() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("memory/box");
        write(&group, "memory.limit_in_bytes", "700\n");
        write(&group, "memory.usage_in_bytes", "50\n");
        write(&root.path().join("memory"), "memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(container_limit(root.path(), "5:cpu:/box\n4:memory:/box\n"), Some((700, 50)));
        assert_eq!(container_limit(root.path(), "garbage"), None);
    }
}
