//! Promise: whatever bytes a file has, reading its header neither panics nor takes memory that the file does not
//! justify, and what opens has every tensor inside the file.
//!
//! Real headers and small files are damaged in many ways by a random generator with fixed seeds. The allocator of this
//! test binary counts for each thread.

mod gguf_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gguf_support::{FIXTURES, Raw, SHARD_2, everything, fixture, repository};
use strata::gguf::{Array, GgufError, GgufWriter, ModelFiles, Strings, Value};

struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
    static LARGEST_BYTES: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // `try_with`: a thread also frees memory while its locals are being taken down.
    let _ = LIVE_BYTES.try_with(|live| {
        live.set(live.get() + bytes);
        PEAK_BYTES.with(|peak| peak.set(peak.get().max(live.get())));
    });
    if bytes > 0 {
        let _ = LARGEST_BYTES.try_with(|largest| largest.set(largest.get().max(bytes as usize)));
    }
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // Old and new exist at once while it is copied.
        count(new_bytes as isize);
        count(-(layout.size() as isize));
        unsafe { System.realloc(pointer, layout, new_bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work` and returns its result, the largest allocation and the most memory in use at once, in bytes.
fn measure<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = LIVE_BYTES.get();
    PEAK_BYTES.set(before);
    LARGEST_BYTES.set(0);
    let result = work();
    (result, LARGEST_BYTES.get(), (PEAK_BYTES.get() - before) as usize)
}

/// The generator splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// A sound header to be damaged.
struct Seed {
    header: Vec<u8>,
    /// Size of the whole file. More than the header where the data was left out.
    file_bytes: u64,
    /// Place and width of every count, length, type, dimension and offset.
    fields: Vec<(usize, usize)>,
    /// The first of `fields` that belongs to the tensor table.
    table_field: usize,
}

impl Seed {
    fn new(mut bytes: Vec<u8>, with_data: bool) -> Seed {
        let file_bytes = bytes.len() as u64;
        let (fields, table_field, header_bytes) = find_fields(&bytes);
        if !with_data {
            bytes.truncate(header_bytes);
        }
        Seed { header: bytes, file_bytes, fields, table_field }
    }
}

/// Walks a sound file, independently of the reader under test, and returns its fields, the first of them that
/// belongs to the tensor table, and where the header ends.
fn find_fields(bytes: &[u8]) -> (Vec<(usize, usize)>, usize, usize) {
    struct Walk<'a> {
        bytes: &'a [u8],
        at: usize,
        fields: Vec<(usize, usize)>,
    }
    impl Walk<'_> {
        fn field(&mut self, width: usize) -> usize {
            let mut value = [0; 8];
            value[..width].copy_from_slice(&self.bytes[self.at..self.at + width]);
            self.fields.push((self.at, width));
            self.at += width;
            u64::from_le_bytes(value) as usize
        }
        fn string(&mut self) {
            self.at += self.field(8);
        }
        fn value(&mut self, value_type: usize) {
            match value_type {
                8 => self.string(),
                9 => {
                    let item_type = self.field(4);
                    let count = self.field(8);
                    (0..count).for_each(|_| self.value(item_type));
                }
                plain => self.at += [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8][plain],
            }
        }
    }
    let mut walk = Walk { bytes, at: 4, fields: Vec::new() };
    walk.field(4);
    let (tensor_count, key_count) = (walk.field(8), walk.field(8));
    for _ in 0..key_count {
        walk.string();
        let value_type = walk.field(4);
        walk.value(value_type);
    }
    let table_field = walk.fields.len();
    for _ in 0..tensor_count {
        walk.string();
        let dimensions = walk.field(4);
        for _ in 0..dimensions {
            walk.field(8);
        }
        walk.field(4);
        walk.field(8);
    }
    (walk.fields, table_field, walk.at)
}

/// Damages a header in one to three ways, and returns it with the size that the file is said to have.
fn mutate(seed: &Seed, other: &Seed, random: &mut Random) -> (Vec<u8>, u64) {
    let mut bytes = seed.header.clone();
    let mut cut = false;
    for _ in 0..1 + random.below(3) {
        let length = bytes.len();
        let at = random.below(length);
        match random.below(10) {
            0..=4 => damage_field(&mut bytes, seed, random),
            5 | 6 => (0..1 + random.below(8)).for_each(|_| {
                let at = random.below(length);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }),
            7 => {
                bytes.truncate(at);
                cut = true;
            }
            8 => {
                // A piece of another file over or into this one.
                let from = random.below(other.header.len());
                let piece = &other.header[from..(from + 1 + random.below(64)).min(other.header.len())];
                let end = if random.below(2) == 0 { at } else { (at + piece.len()).min(length) };
                bytes.splice(at..end, piece.iter().copied());
            }
            _ => {
                bytes.drain(at..(at + 1 + random.below(32)).min(length));
            }
        }
    }
    let data_bytes = seed.file_bytes - seed.header.len() as u64;
    let file_bytes = if cut { bytes.len() as u64 } else { bytes.len() as u64 + data_bytes };
    (bytes, file_bytes)
}

/// Overwrites a count, length, type, dimension or offset with a value at which checks are prone to fail.
fn damage_field(bytes: &mut [u8], seed: &Seed, random: &mut Random) {
    // Half of the time in the tensor table: most fields of a real header are lengths of tokens.
    let first = if random.below(2) == 0 { 0 } else { seed.table_field };
    let (at, width) = seed.fields[first + random.below(seed.fields.len() - first)];
    let Some(field) = bytes.get_mut(at..at + width) else {
        return;
    };
    let mut old = [0; 8];
    old[..width].copy_from_slice(field);
    let old = u64::from_le_bytes(old);
    let value = match random.below(12) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << random.below(64),
        3 => (1u64 << random.below(64)).wrapping_sub(1),
        4 => old.wrapping_add(1),
        5 => old.wrapping_sub(1),
        6 => old.wrapping_mul(2),
        7 => seed.file_bytes.wrapping_add(random.below(64) as u64).wrapping_sub(32),
        8 => (seed.header.len() - at) as u64 / (1 + random.below(16) as u64),
        9 => u64::MAX / (1 + random.below(300) as u64),
        10 => old.wrapping_add(32u64.wrapping_mul(random.below(64) as u64)),
        _ => random.below(256) as u64,
    };
    field.copy_from_slice(&value.to_le_bytes()[..width]);
}

/// What must be true of every model that opens.
fn check_sound(model: &ModelFiles, file_bytes: u64) {
    let mut names = HashSet::new();
    let mut ranges = Vec::new();
    for tensor in model.tensors() {
        let file = &model.files()[tensor.shard];
        let end = tensor.offset.checked_add(tensor.bytes).expect("no overflow");
        assert!(file.bytes <= file_bytes && end <= file.bytes && tensor.bytes > 0);
        assert!(tensor.offset % file.alignment_bytes == 0);
        assert!((1..=4).contains(&tensor.shape.len()));
        assert_eq!(tensor.format.row_bytes(tensor.row_len()), Some(tensor.row_bytes()));
        assert_eq!(tensor.row_bytes().checked_mul(tensor.rows()), Some(tensor.bytes));
        assert!(names.insert(&tensor.name));
        ranges.push((tensor.shard, tensor.offset, end));
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1));
    for (key, value) in model.metadata().iter() {
        assert!(value.to_string().len() < 2000);
        assert_eq!(model.metadata().get(key).map(Value::value_type), Some(value.value_type()));
        let _ = (model.metadata().u32(key), model.metadata().i32s(key), model.metadata().u32_per_layer(key, 3));
    }
}

/// An error must name the file and stay short.
fn check_error(error: &GgufError) {
    let text = error.to_string();
    assert!(text.contains("mutant"), "{text}");
    // Two names of at most 1024 bytes, of which each may be escaped as `\u{10ffff}`.
    assert!(text.len() < 20_000 && !text.contains(char::is_control), "{text:?}");
}

/// Opens `cases` damaged headers and returns how many of them opened.
fn run(seeds: &[Seed], cases: u64, seed_number: u64) -> u64 {
    let mut opened = 0;
    for case in 0..cases {
        let mut random = Random(seed_number << 32 | case);
        let (seed, other) = (random.below(seeds.len()), random.below(seeds.len()));
        let (bytes, file_bytes) = mutate(&seeds[seed], &seeds[other], &mut random);
        let checked = catch_unwind(AssertUnwindSafe(|| {
            let open = || ModelFiles::from_header("mutant.gguf", bytes.as_slice(), file_bytes);
            let (result, largest_bytes, peak_bytes) = measure(open);
            let allowed_bytes = file_bytes as usize + (64 << 10);
            assert!(largest_bytes <= allowed_bytes, "an allocation of {largest_bytes} bytes for {file_bytes}");
            let allowed_bytes = allowed_bytes + 2 * bytes.len();
            assert!(peak_bytes <= allowed_bytes, "{peak_bytes} bytes in use, {allowed_bytes} allowed");
            match &result {
                Ok(model) => check_sound(model, file_bytes),
                Err(error) => check_error(error),
            }
            result.is_ok()
        }));
        match checked {
            Ok(ok) => opened += u64::from(ok),
            Err(panic) => {
                eprintln!("case {case} of series {seed_number}, made from seed {seed}, {file_bytes} bytes");
                std::panic::resume_unwind(panic);
            }
        }
    }
    opened
}

fn small_seeds() -> Vec<Seed> {
    let mut seeds = vec![
        Seed::new(everything().to_bytes().unwrap(), true),
        Seed::new(Raw::start(2, 1, 1).key_u32("general.alignment", 8).tensor("x", &[3], 0, 0).data(12).0, true),
    ];
    // The keys and tensors of a real file, with its long arrays and large tensors made small.
    for path in ["tests/fixtures/tiny-random-BF16.gguf", "assets/tiny-flash-next-IQ3_XXS.gguf"] {
        let model = ModelFiles::open(repository(path)).unwrap();
        let mut writer = GgufWriter::new();
        for (key, value) in model.metadata().iter() {
            match value {
                Value::Array(Array::String(items)) => writer.set(key, items.iter().take(5).collect::<Strings>()),
                Value::Array(Array::I32(items)) => writer.set(key, items[..items.len().min(5)].to_vec()),
                Value::String(text) => writer.set(key, text.chars().take(20).collect::<String>()),
                other => writer.set(key, other.clone()),
            };
        }
        for tensor in model.tensors().iter().step_by(12) {
            writer.zeros(&tensor.name, &[tensor.format.info().block_len as u64, 2], tensor.format).unwrap();
        }
        seeds.push(Seed::new(writer.to_bytes().unwrap(), true));
    }
    seeds
}

fn fixture_seeds() -> Vec<Seed> {
    let mut paths = FIXTURES.map(|(path, ..)| repository(path)).to_vec();
    paths.push(fixture(SHARD_2));
    paths.iter().map(|path| Seed::new(fs::read(path).unwrap(), false)).collect()
}

#[test]
fn damaged_small_files_neither_panic_nor_take_memory() {
    let opened = run(&small_seeds(), 250_000, 1);
    // Harmless damage (in a number, a text) must leave files open, or the checks of what opens check nothing.
    assert!((10_000..200_000).contains(&opened), "{opened} opened");
}

#[test]
fn damaged_headers_of_the_fixtures_neither_panic_nor_take_memory() {
    let opened = run(&fixture_seeds(), 100_000, 2);
    assert!((1_000..80_000).contains(&opened), "{opened} opened");
}

#[test]
fn damaged_shards_neither_panic_nor_join_wrongly() {
    let shards = everything().to_shards("mutant", 2).unwrap();
    let seeds: Vec<Seed> = shards.iter().map(|(_, bytes)| Seed::new(bytes.clone(), true)).collect();
    let mut opened = 0;
    for case in 0..20_000 {
        let mut random = Random(3 << 32 | case);
        let damaged = random.below(shards.len());
        let (bytes, _) = mutate(&seeds[damaged], &seeds[random.below(shards.len())], &mut random);
        let mut files = shards.clone();
        files[damaged].1 = bytes;
        let largest_bytes = files.iter().map(|(_, bytes)| bytes.len() as u64).max().unwrap();
        match ModelFiles::from_memory(files) {
            Ok(model) => {
                check_sound(&model, largest_bytes);
                for tensor in model.tensors() {
                    assert_eq!(model.borrow(tensor).map(<[u8]>::len), Some(tensor.bytes as usize));
                }
                opened += 1;
            }
            Err(error) => check_error(&error),
        }
    }
    assert!((500..15_000).contains(&opened), "{opened} opened");
}

/// The costliest sound headers: memory may exceed the file by the fixed bookkeeping of keys and tensors only.
#[test]
fn the_costliest_headers_take_no_more_memory_than_the_file_and_a_fixed_amount() {
    const BOOKKEEPING_BYTES: usize = 16 << 20;
    let keys = (0..16_384).fold(Raw::start(3, 0, 16_384), |raw, i| raw.string(format!("{i:x}")).u32(7).bytes(&[1]));
    let tensors = (0..65_536u64).fold(Raw::start(3, 65_536, 0), |raw, i| raw.tensor(&format!("{i:x}"), &[1], 0, 32 * i));
    let inner = (0..65_536).fold(Raw::start(3, 0, 1).key("a", 9).u32(9).u64(65_536), |raw, _| raw.u32(0).u64(0));
    let empty_strings = Raw::start(3, 0, 1).key("a", 9).u32(8).u64(4 << 20).bytes(&vec![0; 32 << 20]);
    let one_string = Raw::start(3, 0, 1).key("a", 8).string("x".repeat(32 << 20));
    let strings = (0..1 << 20).fold(Raw::start(3, 0, 1).key("a", 9).u32(8).u64(1 << 20), |raw, _| raw.string("0123456789abcdef"));
    // A list that doubles its room at the second string would exceed the file.
    let two_strings = Raw::start(3, 0, 1).key("a", 9).u32(8).u64(2).string("x".repeat(20 << 20)).string("y".repeat(12 << 20));
    let bools = Raw::start(3, 0, 1).key("a", 9).u32(7).u64(32 << 20).bytes(&vec![1; 32 << 20]);
    let cases = [
        ("keys", keys.0),
        ("tensors", tensors.data(65_536 * 32).0),
        ("inner arrays", inner.0),
        ("empty strings", empty_strings.0),
        ("one string", one_string.0),
        ("strings", strings.0),
        ("bools", bools.0),
        ("two strings", two_strings.0),
    ];
    for (case, bytes) in &cases {
        let open = || ModelFiles::from_header("costly.gguf", bytes.as_slice(), bytes.len() as u64).map(drop);
        let (result, largest_bytes, peak_bytes) = measure(open);
        result.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert!(largest_bytes <= bytes.len() + BOOKKEEPING_BYTES / 4, "{case}: {largest_bytes}");
        // Text that grows exists twice for a moment; all else is reserved once.
        let copies = if *case == "two strings" { 2 } else { 1 };
        assert!(peak_bytes <= copies * bytes.len() + BOOKKEEPING_BYTES, "{case}: {peak_bytes}");
    }
}

/// A count that promises much must not reserve anything for what is not there.
#[test]
fn false_promises_reserve_nothing() {
    let promises = [
        Raw::start(3, 65_536, 0).bytes(&vec![0; 65_536 * 32]),
        Raw::start(3, 0, 16_384).bytes(&vec![0xFF; 16_384 * 13]),
        Raw::start(3, 0, 1).key("a", 9).u32(8).u64(1 << 17).bytes(&vec![0xFF; 1 << 20]),
        Raw::start(3, 0, 1).key("a", 8).u64(u64::MAX).bytes(&vec![0; 1 << 20]),
    ];
    for raw in promises {
        let open = || ModelFiles::from_header("mutant.gguf", raw.0.as_slice(), raw.0.len() as u64).is_err();
        let (refused, _, peak_bytes) = measure(open);
        assert!(refused && peak_bytes <= raw.0.len() / 2 + (256 << 10), "{peak_bytes} for {}", raw.0.len());
    }
}
