//! Which processors this process may use: which of them are threads of one core, how fast they are, and which memory is near.

use std::collections::HashMap;
#[cfg(any(target_os = "linux", test))]
use std::path::Path;

use super::affinity;

/// A processor as the system counts them: a hardware thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processor {
    pub number: usize,
    /// The same for all threads of a core.
    pub core: usize,
    /// Memory node that it is near to.
    pub node: usize,
    /// Larger is faster; equal where the system does not tell.
    pub speed: u64,
}

/// The processors that this process may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    processors: Vec<Processor>,
    /// Most processors that are worth using: a container may allow less time than all of them have.
    most: usize,
}

impl Topology {
    /// Of this PC, as far as the system tells.
    pub fn here() -> Topology {
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        #[cfg(target_os = "linux")]
        let found = Topology::read(Path::new("/sys/devices/system/cpu"), &affinity::allowed_processors());
        #[cfg(not(target_os = "linux"))]
        let found = Topology { processors: affinity::processors(), most: 0 };
        if !found.processors.is_empty() {
            // Windows counts one group of processors, and all of them are within reach.
            return Topology { most: if cfg!(windows) { found.processors.len() } else { most }, ..found };
        }
        // Each a core of its own, in no known place.
        let alike = |number| Processor { number, core: number, node: 0, speed: 0 };
        Topology { processors: (0..most).map(alike).collect(), most }
    }

    /// The processors `allowed`, as the kernel's files under `root` describe them.
    #[cfg(any(target_os = "linux", test))]
    fn read(root: &Path, allowed: &[usize]) -> Topology {
        let processor = |&number: &usize| {
            let folder = root.join(format!("cpu{number}"));
            let text = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
            let first = |list: String| list.split([',', '-']).next()?.trim().parse().ok();
            let speed = ["cpu_capacity", "cpufreq/cpuinfo_max_freq"].into_iter().find_map(|file| text(file)?.trim().parse().ok());
            let names = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let node = names.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()).min();
            let core = text("topology/thread_siblings_list").and_then(first);
            Processor { number, core: core.unwrap_or(number), node: node.unwrap_or(0), speed: speed.unwrap_or(0) }
        };
        Topology { processors: allowed.iter().map(processor).collect(), most: allowed.len() }
    }

    /// Cores: hardware threads of one core count once.
    pub fn cores(&self) -> usize {
        self.ranked().filter(|(_, rank)| *rank == 0).count().min(self.most).max(1)
    }

    /// Cores of each kind, the fastest first; one group where all are alike.
    pub fn core_groups(&self) -> Vec<usize> {
        let mut groups: Vec<(u64, usize)> = Vec::new();
        for (p, _) in self.ranked().filter(|(_, rank)| *rank == 0) {
            match groups.iter_mut().find(|(speed, _)| *speed == p.speed) {
                Some((_, count)) => *count += 1,
                None => groups.push((p.speed, 1)),
            }
        }
        groups.sort_unstable_by_key(|(speed, _)| std::cmp::Reverse(*speed));
        groups.into_iter().map(|(_, count)| count).collect()
    }

    /// Hardware threads that this process may use.
    pub fn threads(&self) -> usize {
        self.processors.len()
    }

    /// Nodes of memory that the processors are near to, in order.
    pub fn nodes(&self) -> Vec<usize> {
        let mut nodes: Vec<usize> = self.processors.iter().map(|p| p.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Processors with their place among those of their core.
    fn ranked(&self) -> impl Iterator<Item = (Processor, usize)> + '_ {
        let mut seen: HashMap<usize, usize> = HashMap::new();
        self.processors.iter().map(move |p| {
            let rank = seen.entry(p.core).or_default();
            *rank += 1;
            (*p, *rank - 1)
        })
    }

    /// Numbers of the processors in the order in which workers take them: a thread of every core before the second of any, fast
    /// cores before slow ones, and the nodes of memory in turn.
    pub fn order(&self) -> Vec<usize> {
        let mut ranked: Vec<(Processor, usize)> = self.ranked().collect();
        ranked.sort_by_key(|(p, rank)| (*rank, std::cmp::Reverse(p.speed), p.number));
        let mut turns: HashMap<(usize, u64, usize), usize> = HashMap::new();
        let mut order: Vec<_> = ranked
            .into_iter()
            .map(|(p, rank)| {
                let turn = turns.entry((rank, p.speed, p.node)).or_default();
                *turn += 1;
                ((rank, std::cmp::Reverse(p.speed), *turn, p.node), p.number)
            })
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, number)| number).collect()
    }

    /// Numbers of workers that are worth a measurement, smallest first: half of the cores, the fastest ones, all of them, and all
    /// hardware threads.
    pub fn candidates(&self) -> Vec<usize> {
        let cores = self.cores();
        let fastest = self.processors.iter().map(|p| p.speed).max();
        let fast = self.ranked().filter(|(p, rank)| *rank == 0 && Some(p.speed) == fastest).count();
        let mut counts = vec![cores.div_ceil(2), fast, cores, self.processors.len()];
        counts.retain(|count| (1..=self.most.max(1)).contains(count));
        counts.sort_unstable();
        counts.dedup();
        counts
    }
}

/// Of numbers of workers and the speeds that were measured with them, the smallest that is as fast as any, up to what a measurement
/// tells apart.
pub fn fastest(measured: &[(usize, f64)]) -> Option<usize> {
    /// Two measurements of the same thing differ by so much.
    const NOISE: f64 = 0.03;
    let best = measured.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let good = measured.iter().filter(|(_, rate)| *rate >= best * (1.0 - NOISE) && *rate > 0.0);
    good.map(|(count, _)| *count).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder as the kernel would show it: siblings, node and speed of each processor.
    fn folder(processors: &[(&str, usize, Option<u64>)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (number, (siblings, node, speed)) in processors.iter().enumerate() {
            let cpu = root.path().join(format!("cpu{number}"));
            std::fs::create_dir_all(cpu.join("topology")).unwrap();
            std::fs::create_dir_all(cpu.join(format!("node{node}"))).unwrap();
            std::fs::write(cpu.join("topology/thread_siblings_list"), format!("{siblings}\n")).unwrap();
            if let Some(speed) = speed {
                std::fs::write(cpu.join("cpu_capacity"), format!("{speed}\n")).unwrap();
            }
        }
        root
    }

    #[test]
    fn cores_come_before_their_second_threads() {
        // As Linux numbers them on most PCs, and as it does on others.
        let halves = folder(&[("0,2", 0, None), ("1,3", 0, None), ("0,2", 0, None), ("1,3", 0, None)]);
        let found = Topology::read(halves.path(), &[0, 1, 2, 3]);
        assert_eq!((found.cores(), found.order(), found.candidates()), (2, vec![0, 1, 2, 3], vec![1, 2, 4]));
        let pairs = folder(&[("0-1", 0, None), ("0-1", 0, None), ("2-3", 0, None), ("2-3", 0, None)]);
        let found = Topology::read(pairs.path(), &[0, 1, 2, 3]);
        assert_eq!((found.cores(), found.order()), (2, vec![0, 2, 1, 3]));
        // A process that may use one thread of one core and both of another.
        let found = Topology::read(pairs.path(), &[1, 2, 3]);
        assert_eq!((found.cores(), found.order(), found.candidates()), (2, vec![1, 2, 3], vec![1, 2, 3]));
        // A container that allows the time of two.
        let limited = Topology { most: 2, ..found };
        assert_eq!((limited.cores(), limited.candidates()), (2, vec![1, 2]));
    }

    #[test]
    fn nodes_take_turns_and_fast_cores_come_first() {
        let two_nodes: Vec<_> = (0..8).map(|n| (["0", "1", "2", "3", "4", "5", "6", "7"][n], n / 4, None)).collect();
        let root = folder(&two_nodes);
        let found = Topology::read(root.path(), &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((found.order(), found.nodes()), (vec![0, 4, 1, 5, 2, 6, 3, 7], vec![0, 1]));
        let hybrid = folder(&[("0", 0, Some(400)), ("1", 0, Some(400)), ("2-3", 0, Some(1024)), ("2-3", 0, Some(1024))]);
        assert_eq!(Topology::read(hybrid.path(), &[0, 1, 2, 3]).core_groups(), [1, 2]);
        let found = Topology::read(hybrid.path(), &[0, 1, 2, 3]);
        assert_eq!((found.order(), found.candidates()), (vec![2, 0, 1, 3], vec![1, 2, 3, 4]));
    }

    #[test]
    fn without_files_every_processor_is_a_core() {
        let found = Topology::read(Path::new("/nowhere"), &[3, 5]);
        assert_eq!((found.cores(), found.order(), found.nodes()), (2, vec![3, 5], vec![0]));
        let here = Topology::here();
        assert!(here.cores() >= 1 && here.order().len() >= here.cores());
    }

    #[test]
    fn more_workers_must_be_worth_it() {
        assert_eq!(fastest(&[(4, 20.0), (8, 31.0), (16, 31.5)]), Some(8));
        assert_eq!(fastest(&[(4, 20.0), (8, 31.0), (16, 35.0)]), Some(16));
        assert_eq!(fastest(&[(4, 32.0), (8, 31.0), (16, 20.0)]), Some(4));
        assert_eq!((fastest(&[]), fastest(&[(2, 0.0)])), (None, None));
    }
}
