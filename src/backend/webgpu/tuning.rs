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

/// What matrix kernels keep in the memory of a workgroup, and how they multiply it. Formats without codes (F32, BF16, and F16
/// where weights would be codes) use float32 tiles in place of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tile {
    /// Nothing: threads have outputs of their own.
    None,
    /// Weights and inputs in float32.
    Float,
    /// Codes of weights, or F16 weights, in f16, which holds them exactly; inputs and sums in float32.
    Half,
    /// Codes of weights and inputs rounded to two bytes, multiplied four bytes at a time.
    Bytes,
    /// Weights and inputs in float32, multiplied by cooperative matrices of 8 x 8.
    CooperativeFloat,
    /// Codes of weights and the two bytes of rounded inputs in f16, which holds both exactly, multiplied by cooperative matrices of
    /// 16 x 16 that add up in float32.
    CooperativeHalf,
}

impl Tile {
    /// Those that a card may choose from, the plain one first.
    pub const ALL: [Tile; 5] = [Tile::Float, Tile::Half, Tile::Bytes, Tile::CooperativeFloat, Tile::CooperativeHalf];

    pub fn name(self) -> &'static str {
        match self {
            Tile::None => "no tiles",
            Tile::Float => "float32",
            Tile::Half => "f16",
            Tile::Bytes => "packed bytes",
            Tile::CooperativeFloat => "cooperative float32",
            Tile::CooperativeHalf => "cooperative f16",
        }
    }

    /// Whether kernels multiply codes with rounded inputs.
    pub fn rounds_inputs(self) -> bool {
        matches!(self, Tile::Bytes | Tile::CooperativeHalf)
    }

    pub fn is_cooperative(self) -> bool {
        matches!(self, Tile::CooperativeFloat | Tile::CooperativeHalf)
    }

    pub fn needs_f16(self) -> bool {
        matches!(self, Tile::Half | Tile::CooperativeHalf)
    }
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
    /// What matrix kernels keep of [`TILE`] outputs, rows and columns.
    pub tile: Tile,
    /// Threads of a workgroup that adds up a row or a head.
    pub row_threads: u32,
    /// Threads, and so value channels, of a workgroup of the delta rule.
    pub delta_threads: u32,
    /// Threads of a workgroup of the delta rule in chunks, and its value channels.
    pub chunk_threads: u32,
    pub chunk_channels: u32,
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
    tile: Tile::Float,
    row_threads: 64,
    delta_threads: 32,
    chunk_threads: 128,
    chunk_channels: 32,
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
    /// Kernels may use f16.
    pub f16: bool,
    /// Cooperative matrices: 8 x 8 of float32; 16 x 16 of f16 with float32 sums.
    pub cooperative_float: bool,
    pub cooperative_half: bool,
}

impl AdapterKind {
    /// The size of all subgroups, where they have one.
    fn even_subgroup(&self) -> Option<u32> {
        let even = self.subgroups && self.least_subgroup == self.largest_subgroup && self.least_subgroup.is_power_of_two();
        even.then_some(self.least_subgroup)
    }

    /// Whether kernels with a kind of tile can run.
    pub fn has(&self, tile: Tile) -> bool {
        // Two subgroups of a workgroup share a tile.
        let halves = self.even_subgroup() == Some(PLAIN.threads / 2);
        match tile {
            Tile::None | Tile::Float | Tile::Bytes => true,
            Tile::Half => self.f16,
            Tile::CooperativeFloat => halves && self.cooperative_float,
            Tile::CooperativeHalf => halves && self.f16 && self.cooperative_half,
        }
    }
}

impl Tuning {
    /// Kernels that need nothing but workgroup memory; `lanes` threads share an output.
    pub const fn plain(lanes: u32) -> Tuning {
        Tuning { lanes, ..PLAIN }
    }

    /// Kernels for a processor with other vectors: no barriers in products.
    pub const fn modest() -> Tuning {
        Tuning { lanes: 1, tile: Tile::None, args_in_storage: true, ..PLAIN }
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
            tile: Tile::None,
            row_threads: threads,
            chunk_threads: 64,
            chunk_channels: 64,
            args_in_storage: true,
            ..PLAIN
        }
    }

    /// The same with other tiles.
    pub const fn with_tile(self, tile: Tile) -> Tuning {
        Tuning { tile, ..self }
    }

    fn is_tiled(&self) -> bool {
        self.tile != Tile::None
    }

    /// Outputs of a workgroup of matrix–vector kernels.
    pub fn vector_outs(&self) -> u32 {
        self.threads / self.lanes * self.outs
    }

    /// Outputs and window rows of a workgroup of matrix kernels.
    pub fn matrix_tile(&self) -> (u32, u32) {
        if self.is_tiled() { (TILE, TILE) } else { (self.threads * self.outs, self.rows) }
    }

    /// Outputs and window rows of a thread of matrix kernels.
    pub fn matrix_share(&self) -> (u32, u32) {
        if self.is_tiled() { (TILE_SHARE, TILE_SHARE) } else { (self.outs, self.rows) }
    }

    /// The numbers for an adapter. Cards want neighbouring threads on neighbouring weights, so some share an output; processors
    /// want one thread an output.
    pub fn of(kind: &AdapterKind) -> Tuning {
        match (kind.software, kind.even_subgroup()) {
            (true, Some(BROADCAST_THREADS)) => Tuning::processor(BROADCAST_THREADS),
            (true, _) => Tuning::modest(),
            (false, Some(threads)) if (8..=32).contains(&threads) => Tuning::subgroups(threads),
            (false, _) => Tuning::plain(kind.least_subgroup.clamp(8, 32).next_power_of_two().min(32)),
        }
    }
}

/// Outputs, rows and columns of a tile in workgroup memory: 64 threads have 4 x 4 products each.
pub const TILE: u32 = 32;
const TILE_SHARE: u32 = 4;
const _: () = assert!(PLAIN.threads * TILE_SHARE * TILE_SHARE == TILE * TILE);

/// Threads of a subgroup that hands round 32 inputs, four each.
pub const BROADCAST_THREADS: u32 = 8;

/// Kernels by name, for tests and benches.
pub const KERNEL_SETS: &[(&str, Tuning)] = &[
    ("processor", Tuning::processor(BROADCAST_THREADS)),
    ("subgroups", Tuning::subgroups(BROADCAST_THREADS)),
    ("one lane", Tuning::modest()),
    ("32 lanes", Tuning::plain(32)),
    ("f16 tiles", Tuning::plain(32).with_tile(Tile::Half)),
    ("byte tiles", Tuning::plain(32).with_tile(Tile::Bytes)),
];

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: AdapterKind = AdapterKind {
        software: false,
        subgroups: false,
        least_subgroup: 0,
        largest_subgroup: 0,
        f16: false,
        cooperative_float: false,
        cooperative_half: false,
    };

    fn of(software: bool, subgroups: bool, least_subgroup: u32, largest_subgroup: u32) -> Tuning {
        Tuning::of(&AdapterKind { software, subgroups, least_subgroup, largest_subgroup, ..NOTHING })
    }

    #[test]
    fn adapters_have_the_tiles_that_their_features_allow() {
        let tiles = |kind: AdapterKind| Tile::ALL.into_iter().filter(|tile| kind.has(*tile)).collect::<Vec<_>>();
        assert_eq!(tiles(NOTHING), [Tile::Float, Tile::Bytes]);
        assert_eq!(tiles(AdapterKind { f16: true, ..NOTHING }), [Tile::Float, Tile::Half, Tile::Bytes]);
        let all = AdapterKind { f16: true, cooperative_float: true, cooperative_half: true, ..NOTHING };
        assert_eq!(tiles(all), [Tile::Float, Tile::Half, Tile::Bytes], "no subgroups of one size");
        let all = AdapterKind { subgroups: true, least_subgroup: 32, largest_subgroup: 32, ..all };
        assert_eq!(tiles(all), Tile::ALL);
        assert!(!tiles(AdapterKind { f16: false, ..all }).contains(&Tile::CooperativeHalf));
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
