//! What kernels are made for: a few numbers, chosen by what an adapter is.

/// How threads work together in products of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Threads add up an output through workgroup memory.
    Memory,
    /// The threads of a subgroup add up an output.
    Subgroup,
    /// Each thread has outputs of its own; a subgroup reads inputs together and hands them round.
    Broadcast,
}

/// Numbers that a device's kernels are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuning {
    pub sharing: Sharing,
    /// Threads of a subgroup, where every subgroup has as many; 0 where kernels must do without.
    pub subgroup: u32,
    /// Threads of a workgroup of products, and how many of them share an output of a matrix–vector product.
    pub threads: u32,
    pub lanes: u32,
    /// Outputs of a thread, and window rows of a workgroup of matrix kernels that are not tiled.
    pub outs: u32,
    pub rows: u32,
    /// Matrix kernels keep tiles of [`TILE`] outputs, rows and columns in workgroup memory.
    pub tiled: bool,
    /// Threads of a workgroup that adds up a row or a head.
    pub row_threads: u32,
    /// Threads, and so value channels, of a workgroup of the delta rule.
    pub delta_threads: u32,
    /// Arguments lie in storage, not in a uniform buffer: Mesa's software driver compiles a kernel again for every set of uniform
    /// values that bound its loops.
    pub args_in_storage: bool,
}

const PLAIN: Tuning = Tuning {
    sharing: Sharing::Memory,
    subgroup: 0,
    threads: 64,
    lanes: 8,
    outs: 1,
    rows: 16,
    tiled: true,
    row_threads: 64,
    delta_threads: 32,
    args_in_storage: false,
};

/// What decides the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdapterKind {
    /// A processor plays the card.
    pub software: bool,
    /// Kernels may use subgroup operations.
    pub subgroups: bool,
    pub least_subgroup: u32,
    pub largest_subgroup: u32,
}

impl Tuning {
    /// Kernels that need nothing but workgroup memory; `lanes` threads share an output.
    pub const fn plain(lanes: u32) -> Tuning {
        Tuning { lanes, ..PLAIN }
    }

    /// Kernels for a processor with other vectors: no barriers in products.
    pub const fn modest() -> Tuning {
        Tuning { lanes: 1, tiled: false, args_in_storage: true, ..PLAIN }
    }

    /// Kernels that add up through subgroups, which all have so many threads.
    pub const fn subgroups(threads: u32) -> Tuning {
        Tuning { sharing: Sharing::Subgroup, subgroup: threads, lanes: threads, ..PLAIN }
    }

    /// Kernels for a processor whose vectors are subgroups of this many threads: nobody waits at barriers, and loads, which it
    /// does one by one, are shared.
    pub const fn processor(threads: u32) -> Tuning {
        Tuning {
            sharing: Sharing::Broadcast,
            subgroup: threads,
            threads,
            lanes: 1,
            outs: 2,
            rows: 8,
            tiled: false,
            row_threads: threads,
            args_in_storage: true,
            ..PLAIN
        }
    }

    /// Outputs of a workgroup of matrix–vector kernels.
    pub fn vector_outs(&self) -> u32 {
        self.threads / self.lanes * self.outs
    }

    /// Outputs and window rows of a workgroup of matrix kernels.
    pub fn matrix_tile(&self) -> (u32, u32) {
        if self.tiled { (TILE, TILE) } else { (self.threads * self.outs, self.rows) }
    }

    /// Outputs and window rows of a thread of matrix kernels.
    pub fn matrix_share(&self) -> (u32, u32) {
        if self.tiled { (TILE_SHARE, TILE_SHARE) } else { (self.outs, self.rows) }
    }

    /// The numbers for an adapter. Cards want neighbouring threads on neighbouring weights, so some share an output; processors
    /// want one thread an output.
    pub fn of(kind: &AdapterKind) -> Tuning {
        let AdapterKind { software, subgroups, least_subgroup, largest_subgroup } = *kind;
        let even = subgroups && least_subgroup == largest_subgroup && least_subgroup.is_power_of_two();
        match (software, even) {
            (true, true) if least_subgroup == BROADCAST_THREADS => Tuning::processor(least_subgroup),
            (true, _) => Tuning::modest(),
            (false, true) if (8..=32).contains(&least_subgroup) => Tuning::subgroups(least_subgroup),
            (false, _) => Tuning::plain(least_subgroup.clamp(8, 32).next_power_of_two().min(32)),
        }
    }
}

/// Outputs, rows and columns of a tile in workgroup memory: 64 threads have 4 x 4 products each.
pub const TILE: u32 = 32;
const TILE_SHARE: u32 = 4;
const _: () = assert!(PLAIN.threads * TILE_SHARE * TILE_SHARE == TILE * TILE);

/// Threads of a subgroup that hands round 32 inputs, four each.
pub const BROADCAST_THREADS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(software: bool, subgroups: bool, least_subgroup: u32, largest_subgroup: u32) -> Tuning {
        Tuning::of(&AdapterKind { software, subgroups, least_subgroup, largest_subgroup })
    }

    #[test]
    fn adapters_get_the_kernels_they_can_run() {
        assert_eq!(of(true, true, 8, 8), Tuning::processor(8), "Mesa's software driver");
        assert_eq!(of(true, true, 4, 4), Tuning::modest(), "vectors of four");
        assert_eq!(of(false, true, 32, 32), Tuning::subgroups(32), "NVIDIA, Apple");
        assert_eq!(of(false, true, 64, 64), Tuning::plain(32), "older AMD: two subgroups of lanes would share a workgroup");
        assert_eq!(of(false, true, 32, 64), Tuning::plain(32), "subgroups of either size");
        assert_eq!(of(false, true, 8, 32), Tuning::plain(8), "Intel");
        assert_eq!(of(false, false, 32, 32), Tuning::plain(32), "no subgroup operations");
        assert_eq!(of(false, false, 0, 0), Tuning::plain(8), "sizes unknown");
    }
}
