//! Disks: which one a file lies on, what kind it is, and how fast it reads past the system's cache.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::gguf::{SECTOR_BYTES, SectorBuffer, open_unbuffered, read_exact_at};
use crate::plan::{DiskKind, is_usable_rate};

/// Measured speeds of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DiskSpeeds {
    /// GB/s (10^9) of reading large pieces in order, several at a time.
    pub read_gbs: f64,
    /// Reads a second of one page at random places, one at a time.
    pub random_reads_per_s: f64,
}

impl DiskSpeeds {
    pub fn best(self, other: DiskSpeeds) -> DiskSpeeds {
        DiskSpeeds {
            read_gbs: self.read_gbs.max(other.read_gbs),
            random_reads_per_s: self.random_reads_per_s.max(other.random_reads_per_s),
        }
    }
}

/// A disk as the system names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskIdentity {
    /// The same disk has the same key after a restart, as far as the system tells.
    pub key: String,
    /// For people.
    pub name: String,
    pub kind: DiskKind,
}

/// Smaller files say nothing about a disk.
pub const LEAST_FILE_BYTES: u64 = 64 << 20;
const PIECE_BYTES: usize = 4 << 20;
const READERS: usize = 4;
const SEQUENTIAL_TIME: Duration = Duration::from_millis(250);
const RANDOM_TIME: Duration = Duration::from_millis(100);

/// Reads from a file for at most 0.4 s, past the system's cache. `None` where the file is small, cannot be read, or the file system
/// knows no way past its cache.
pub fn measure(path: &Path) -> Option<DiskSpeeds> {
    let file = open_unbuffered(path).ok()?;
    let bytes = file.metadata().ok().filter(|m| m.is_file())?.len();
    if bytes < LEAST_FILE_BYTES {
        return None;
    }
    let read_gbs = sequential_gbs(&file, bytes)?;
    let random_reads_per_s = random_reads_per_s(&file, bytes)?;
    Some(DiskSpeeds { read_gbs, random_reads_per_s })
}

fn sequential_gbs(file: &File, bytes: u64) -> Option<f64> {
    let pieces = bytes / PIECE_BYTES as u64;
    let (next, read) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    let reader = || -> io::Result<()> {
        let mut pages = SectorBuffer::new(PIECE_BYTES);
        while start.elapsed() < SEQUENTIAL_TIME {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                break;
            }
            read_exact_at(file, piece * PIECE_BYTES as u64, pages.get_mut())?;
            read.fetch_add(PIECE_BYTES as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    let fine = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
        readers.into_iter().all(|r| matches!(r.join(), Ok(Ok(()))))
    });
    let rate = read.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64() / 1e9;
    (fine && is_usable_rate(rate)).then_some(rate)
}

fn random_reads_per_s(file: &File, bytes: u64) -> Option<f64> {
    let mut pages = SectorBuffer::new(SECTOR_BYTES);
    let count = bytes / SECTOR_BYTES as u64;
    // Places that no read-ahead guesses: a multiplicative generator, the same at every measurement.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut reads, start) = (0u64, Instant::now());
    while start.elapsed() < RANDOM_TIME {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        read_exact_at(file, (state >> 16) % count * SECTOR_BYTES as u64, pages.get_mut()).ok()?;
        reads += 1;
    }
    let rate = reads as f64 / start.elapsed().as_secs_f64();
    is_usable_rate(rate).then_some(rate)
}

/// The disk that a file lies on.
#[cfg(target_os = "linux")]
pub fn identify(path: &Path) -> Option<DiskIdentity> {
    use std::os::unix::fs::MetadataExt as _;
    let device = std::fs::metadata(path).ok()?.dev();
    let number = (libc::major(device), libc::minor(device));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    linux::identify(Path::new("/sys"), &mounts, number)
}

/// The volume that a file lies on, with the kind of the disk under it.
#[cfg(windows)]
pub fn identify(path: &Path) -> Option<DiskIdentity> {
    use std::path::{Component, Prefix};
    let full = std::fs::canonicalize(path).ok()?;
    let Some(Component::Prefix(prefix)) = full.components().next() else { return None };
    let (name, kind) = match prefix.kind() {
        Prefix::VerbatimDisk(letter) | Prefix::Disk(letter) => {
            (format!("{}:", char::from(letter)), super::windows::disk_kind(char::from(letter)))
        }
        Prefix::VerbatimUNC(server, share) | Prefix::UNC(server, share) => {
            (format!("{} on {}", share.display(), server.display()), DiskKind::Network)
        }
        _ => return None,
    };
    Some(DiskIdentity { key: format!("volume {name}"), name, kind })
}

/// The volume that a file lies on, with the kind of the disk under it.
#[cfg(target_os = "macos")]
pub fn identify(path: &Path) -> Option<DiskIdentity> {
    let (source, file_system) = super::macos::mounted(path)?;
    let kind = super::macos::disk_kind(&source, &file_system);
    Some(DiskIdentity { key: format!("volume {source}"), name: source, kind })
}

/// The device that a file lies on; what kind it is is not known.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "macos"))))]
pub fn identify(path: &Path) -> Option<DiskIdentity> {
    use std::os::unix::fs::MetadataExt as _;
    let device = std::fs::metadata(path).ok()?.dev();
    Some(DiskIdentity { key: format!("device {device}"), name: format!("device {device}"), kind: DiskKind::Unknown })
}

/// What kind a disk is, from the bus that it hangs on and from whether its heads have to move, as Windows tells both.
#[cfg(any(windows, test))]
pub fn kind_by_bus(bus: Option<u32>, seeks: Option<bool>) -> DiskKind {
    /// `STORAGE_BUS_TYPE` of the Windows API.
    const ISCSI: u32 = 9;
    const NVME: u32 = 17;
    match (bus, seeks) {
        (Some(ISCSI), _) => DiskKind::Network,
        (Some(NVME), _) => DiskKind::Nvme,
        (_, Some(true)) => DiskKind::Hdd,
        (_, Some(false)) => DiskKind::Ssd,
        (_, None) => DiskKind::Unknown,
    }
}

/// Linux: `/sys` and the list of mounts. Everything is passed in, so tests can play any PC.
#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{DiskIdentity, DiskKind};

    pub fn identify(sys: &Path, mounts: &str, (major, minor): (u32, u32)) -> Option<DiskIdentity> {
        if let Some(disk) = block_device(sys, &format!("{major}:{minor}")) {
            return Some(disk);
        }
        let mount = mounts.lines().filter_map(Mount::parse).find(|m| m.number == format!("{major}:{minor}"))?;
        // File systems over several devices have numbers of their own, but name one of the devices.
        let source = mount.source.strip_prefix("/dev/");
        if let Some(disk) = source.and_then(|name| numbered(sys, name)).and_then(|n| block_device(sys, &n)) {
            return Some(disk);
        }
        let kind = match mount.kind {
            "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "virtiofs" | "ceph" => DiskKind::Network,
            "tmpfs" | "ramfs" => DiskKind::Memory,
            _ => DiskKind::Unknown,
        };
        let name = format!("{} at {}", mount.kind, mount.place);
        Some(DiskIdentity { key: format!("mount {name} of {}", mount.source), name, kind })
    }

    /// A line of `/proc/self/mountinfo`.
    struct Mount<'a> {
        number: &'a str,
        place: &'a str,
        kind: &'a str,
        source: &'a str,
    }

    impl Mount<'_> {
        fn parse(line: &str) -> Option<Mount<'_>> {
            let (before, after) = line.split_once(" - ")?;
            let mut before = before.split(' ');
            let (number, place) = (before.nth(2)?, before.nth(1)?);
            let mut after = after.split(' ');
            Some(Mount { number, place, kind: after.next()?, source: after.next()? })
        }
    }

    fn numbered(sys: &Path, name: &str) -> Option<String> {
        text(&sys.join("class/block").join(name).join("dev"))
    }

    /// The whole disk under a partition or a mapped device.
    fn block_device(sys: &Path, number: &str) -> Option<DiskIdentity> {
        let mut folder: PathBuf = fs::canonicalize(sys.join("dev/block").join(number)).ok()?;
        // Encryption and volume managers lie over each other, seldom more than two.
        for _ in 0..8 {
            if folder.join("partition").exists() {
                folder = folder.parent()?.to_path_buf();
            }
            let below = fs::read_dir(folder.join("slaves")).ok().and_then(|mut slaves| slaves.next()?.ok());
            match below.and_then(|below| fs::canonicalize(below.path()).ok()) {
                Some(below) => folder = below,
                None => break,
            }
        }
        let kernel_name = folder.file_name()?.to_string_lossy().into_owned();
        let model = text(&folder.join("device/model"));
        let serial = ["device/serial", "wwid", "device/wwid", "serial"].iter().find_map(|file| text(&folder.join(file)));
        let kind = match text(&folder.join("queue/rotational")).as_deref() {
            _ if kernel_name.starts_with("nvme") => DiskKind::Nvme,
            Some("1") => DiskKind::Hdd,
            Some("0") => DiskKind::Ssd,
            _ => DiskKind::Unknown,
        };
        let name = model.as_ref().map_or_else(|| kernel_name.clone(), |model| format!("{kernel_name}, {model}"));
        let size = text(&folder.join("size")).unwrap_or_default();
        let model = model.unwrap_or_else(|| kernel_name.clone());
        let key = serial.map_or_else(|| format!("disk {model}, {size} sectors"), |serial| format!("disk {model} {serial}"));
        Some(DiskIdentity { key, name, kind })
    }

    fn text(path: &Path) -> Option<String> {
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const MOUNTS: &str = "\
36 35 259:2 / / rw,noatime shared:1 - ext4 /dev/nvme0n1p2 rw
40 36 0:55 /sub /data rw shared:2 - btrfs /dev/sda1 rw
41 36 0:60 / /net rw - nfs4 server:/models rw
42 36 0:61 / /tmp rw - tmpfs tmpfs rw
43 36 0:62 / / rw - overlay overlay rw,lowerdir=/x
";

        /// A folder that looks like `/sys`.
        fn sys() -> tempfile::TempDir {
            let root = tempfile::tempdir().unwrap();
            let at = |path: &str| root.path().join(path);
            let write = |path: &str, text: &str| {
                fs::create_dir_all(at(path).parent().unwrap()).unwrap();
                fs::write(at(path), text).unwrap();
            };
            write("devices/nvme0n1/device/model", "Fast 4000  \n");
            write("devices/nvme0n1/wwid", "eui.01\n");
            write("devices/nvme0n1/queue/rotational", "0\n");
            write("devices/nvme0n1/nvme0n1p2/partition", "2\n");
            write("devices/sda/queue/rotational", "1\n");
            write("devices/sda/size", "1000\n");
            write("devices/sda/sda1/partition", "1\n");
            write("class/block/sda1/dev", "8:1\n");
            write("devices/dm-0/queue/rotational", "0\n");
            fs::create_dir_all(at("devices/dm-0/slaves")).unwrap();
            fs::create_dir_all(at("dev/block")).unwrap();
            let link = |from: &str, to: &str| std::os::unix::fs::symlink(at(to), at(from)).unwrap();
            link("dev/block/259:2", "devices/nvme0n1/nvme0n1p2");
            link("dev/block/8:1", "devices/sda/sda1");
            link("dev/block/253:0", "devices/dm-0");
            link("devices/dm-0/slaves/nvme0n1p2", "devices/nvme0n1/nvme0n1p2");
            root
        }

        #[test]
        fn files_are_traced_to_whole_disks() {
            let root = sys();
            let of = |number| identify(root.path(), MOUNTS, number).unwrap();
            let nvme = of((259, 2));
            assert_eq!((nvme.name.as_str(), nvme.kind), ("nvme0n1, Fast 4000", DiskKind::Nvme));
            assert_eq!(nvme.key, "disk Fast 4000 eui.01");
            assert_eq!(of((253, 0)), nvme, "under an encrypted volume");
            let sda = of((0, 55));
            assert_eq!((sda.name.as_str(), sda.kind, sda.key.as_str()), ("sda", DiskKind::Hdd, "disk sda, 1000 sectors"));
        }

        #[test]
        fn what_lies_on_no_disk_is_told_by_its_file_system() {
            let root = sys();
            let kind = |number| identify(root.path(), MOUNTS, number).map(|d| (d.kind, d.name));
            assert_eq!(kind((0, 60)), Some((DiskKind::Network, "nfs4 at /net".into())));
            assert_eq!(kind((0, 61)), Some((DiskKind::Memory, "tmpfs at /tmp".into())));
            assert_eq!(kind((0, 62)), Some((DiskKind::Unknown, "overlay at /".into())));
            assert_eq!(kind((0, 99)), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn small_and_missing_files_say_nothing() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[1; 10_000]).unwrap();
        assert_eq!(measure(file.path()), None);
        assert_eq!(measure(Path::new("nowhere")), None);
    }

    #[test]
    fn windows_tells_the_bus_and_whether_heads_move() {
        assert_eq!(kind_by_bus(Some(17), None), DiskKind::Nvme);
        assert_eq!(kind_by_bus(Some(11), Some(true)), DiskKind::Hdd);
        assert_eq!(kind_by_bus(Some(11), Some(false)), DiskKind::Ssd);
        assert_eq!(kind_by_bus(Some(9), Some(false)), DiskKind::Network);
        assert_eq!(kind_by_bus(Some(7), None), DiskKind::Unknown);
        assert_eq!(kind_by_bus(None, None), DiskKind::Unknown);
    }

    /// Not every file system knows a way past its cache; where there is one, the rates are rates.
    #[test]
    fn a_large_file_is_measured() {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.as_file().write_all(&vec![7; LEAST_FILE_BYTES as usize]).unwrap();
        match measure(file.path()) {
            Some(speeds) => {
                assert!(speeds.read_gbs > 1e-4 && speeds.random_reads_per_s > 1.0, "{speeds:?}");
                println!("{speeds:?}");
            }
            None => println!("this file system knows no way past its cache: nothing measured"),
        }
    }
}
