//! What is found, what is absent, and memory without a model.

use std::process::Command;
use std::thread;

use super::sim_support::*;
use strata::backend::cuda::CudaDriver;
use strata::backend::device::{DeviceFinder, Images, Unavailable, Vendor};
use strata::backend::hip::HipDriver;
use strata::backend::{ArenaSizes, BackendError, Finder};
use strata::probe::{Effort, Probe};
use strata::program::{ArenaKind, Slice};

const MIB: u64 = 1 << 20;

#[test]
fn cards_are_found_with_their_facts() {
    let sim = Sim::cuda(
        "card name=\"NVIDIA GeForce RTX 3090\" arch=8.6 vram=24G sms=82 display=1 pci=0000:41:00.0 uuid=00112233445566778899aabbccddeeff\n\
         card name=\"Tesla T4\" arch=7.5 vram=16G sms=40 pci=0000:01:00.0",
    );
    let found = sim.found();
    assert_eq!(found.len(), 2);
    let card = &found[0];
    assert_eq!((card.name.as_str(), card.vendor.as_str()), ("NVIDIA GeForce RTX 3090", "NVIDIA"));
    assert_eq!(card.capability.as_deref(), Some("8.6"));
    assert_eq!(card.uuid.as_deref(), Some("GPU-00112233-4455-6677-8899-aabbccddeeff"));
    assert_eq!(card.pci.map(|p| p.to_string()).as_deref(), Some("0000:41:00.0"));
    assert_eq!((card.compute_units, card.total_bytes), (Some(82), 24 << 30));
    assert!(card.drives_display && !card.integrated && card.unusable.is_none());
    assert!(card.driver.starts_with("CUDA 12"), "{}", card.driver);
    assert!(!found[1].drives_display);
    drop(sim);

    let sim =
        Sim::hip("card name=\"AMD Radeon RX 7900 XTX\" arch=gfx1100 vram=24G sms=48\ncard arch=gfx906 wave=64 sms=60 vram=16G");
    let found = sim.found();
    assert_eq!(found[0].name, "AMD Radeon RX 7900 XTX");
    let capabilities: Vec<_> = found.iter().map(|card| card.capability.as_deref()).collect();
    assert_eq!(capabilities, [Some("gfx1100"), Some("gfx906")]);
    assert_eq!(found[1].features, ["64 threads in step"]);
    assert!(found[0].driver.starts_with("HIP 6"), "{}", found[0].driver);
}

#[test]
fn free_memory_is_what_is_left_with_the_context_open() {
    let sim = Sim::cuda("card vram=1G context=100M module=7M other=200M");
    let finder = sim.finder();
    let card = finder.find().unwrap().remove(0);
    assert_eq!(card.free_bytes, (1024 - 100 - 200) * MIB);
    assert_eq!(card.driver_bytes.context_bytes, Some(0), "it is in the figure already");
    assert_eq!((sim.counter("module-calls"), sim.counter("alloc-calls")), (0, 0), "looking loads and takes nothing");
    sim.assert_given_back("after finding");
    assert_eq!(sim.counter("bytes"), 0, "the context was given back too");
    sim.command("take 0 50M");
    assert_eq!(finder.free_bytes(&card), Some(card.free_bytes - 50 * MIB));
    sim.command("give 0 250M");
    assert_eq!(finder.free_bytes(&card), Some(card.free_bytes + 200 * MIB));
}

/// Drivers report too much until a first kernel has run, and take some of it then.
#[test]
fn free_memory_is_read_after_the_first_launch_and_is_the_truth() {
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let sim = Sim::new(vendor, "card vram=1G context=100M module=7M late=50M optimism=300M");
        let mut card = sim.open(0);
        let free_bytes = card.free_bytes().unwrap();
        assert_eq!(free_bytes, (1024 - 100 - 7 - 50) * MIB, "{vendor:?}");
        card.open(sizes(free_bytes, 0, 0)).expect("what is said to be free can be taken");
    }
}

#[test]
fn a_card_is_measured_once_for_each_driver() {
    let sim = Sim::cuda("driver 12040\ncard vram=2G context=1M");
    let folder = tempfile::tempdir().unwrap();
    let look = |effort| {
        let finder = sim.finder();
        let finders: [&dyn Finder; 1] = [&finder];
        let probe = Probe { finders: &finders, cache: Some(folder.path().into()), ..Probe::new(effort) };
        let before = sim.counter("alloc-calls");
        let card = probe.look().machine.cards.remove(0);
        sim.assert_given_back("after a look");
        (card, sim.counter("alloc-calls") - before)
    };
    assert_eq!(look(Effort::Read).1, 0, "reading takes nothing");
    let (first, taken) = look(Effort::Known);
    assert!(taken > 0 && first.memory_gbs.unwrap() > 0.0 && first.bus_gbs.unwrap() > 0.0, "{first:?}");
    assert!(first.bus_median_gbs.unwrap() <= first.bus_gbs.unwrap());
    let (again, taken) = look(Effort::Known);
    assert_eq!((taken, again.memory_gbs, again.bus_gbs), (0, first.memory_gbs, first.bus_gbs));
    sim.set("driver 12080\ncard vram=2G context=1M");
    assert!(look(Effort::Known).1 > 0, "another driver");
    // A card that is too full is tried again the next time.
    sim.set("driver 12090\ncard vram=2G context=1M other=2000M");
    let (full, _) = look(Effort::Known);
    assert_eq!((full.memory_gbs, full.bus_gbs), (None, None));
    sim.command("give 0 2000M");
    assert!(look(Effort::Known).0.memory_gbs.is_some());
}

/// A copy that the hardware does not finish: the host goes on until it needs the bytes, and the other cards work.
#[test]
fn a_copy_that_hangs_holds_up_its_own_card_and_no_other() {
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let sim = Sim::new(vendor, "card vram=64M context=1M\ncard vram=64M context=1M");
        let [mut hung, mut well] = [sim.open(0), sim.open(1)];
        for card in [&mut hung, &mut well] {
            card.open(sizes(MIB, 0, 0)).unwrap();
            card.upload(slice(ArenaKind::Weights, 0, 4), &[0; 4]).unwrap();
        }
        let (sent, place) = (noise(1000), slice(ArenaKind::Weights, 256, 1000));
        sim.command("hold-copy 1");
        hung.upload(place, &sent).expect("the copy is under way");
        assert_eq!(sim.counter("held-copies"), 1);
        let mut back = vec![0; sent.len()];
        thread::scope(|scope| {
            let waiting = scope.spawn(|| hung.download(place, &mut back));
            let mut other = vec![0; sent.len()];
            well.upload(place, &sent).unwrap();
            well.download(place, &mut other).unwrap();
            assert!(other == sent && !waiting.is_finished());
            sim.command("release-copies");
            waiting.join().unwrap().unwrap();
        });
        assert!(back == sent, "{vendor:?}");
    }
}

/// The program itself: what it says of drivers that are damaged, and that it goes on without them.
#[test]
fn a_damaged_driver_is_told_from_none() {
    let folder = tempfile::tempdir().unwrap();
    let devices = || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_strata"));
        let ran = program.arg("devices").env("LD_LIBRARY_PATH", folder.path()).env("XDG_CACHE_HOME", folder.path());
        let ran = ran.output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    };
    let line = |text: &str, vendor: &str| text.lines().find(|line| line.contains(vendor)).unwrap_or_default().to_owned();
    for (name, vendor) in [("libcuda.so.1", "NVIDIA driver"), ("libamdhip64.so.6", "AMD HIP runtime")] {
        std::fs::write(folder.path().join(name), "half of a library").unwrap();
        let told = devices();
        assert!(line(&told, vendor).contains("cannot be used") && told.contains(name), "{told}");
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    let old = [(Vendor::Nvidia, "libcuda.so.1", "NVIDIA driver"), (Vendor::Amd, "libamdhip64.so.6", "AMD HIP runtime")];
    for (vendor, name, words) in old {
        std::fs::copy(library(vendor, true), folder.path().join(name)).unwrap();
        let told = devices();
        assert!(line(&told, words).contains("lacks the function"), "{told}");
    }
}

#[test]
fn what_is_absent_is_one_sentence() {
    let told = |why: Unavailable, words: &[&str]| {
        let text = why.to_string();
        assert!(words.iter().all(|word| text.contains(word)) && !text.contains('\n'), "{text}");
    };
    let nowhere = std::path::Path::new("nowhere/libcuda.so.1");
    told(CudaDriver::open_at(nowhere).unwrap_err(), &["nowhere/libcuda.so.1"]);
    // This PC has no such driver, or has one; neither may end the process.
    for absent in [CudaDriver::open().map(drop).err(), HipDriver::open().map(drop).err()].into_iter().flatten() {
        told(absent, &["installed"]);
    }
    let old = CudaDriver::open_at(&library(Vendor::Nvidia, true)).unwrap_err();
    assert!(matches!(old, Unavailable::MissingFunction { .. }), "{old}");
    told(old, &["NVIDIA driver", "too old", "'cu"]);
    told(HipDriver::open_at(&library(Vendor::Amd, true)).unwrap_err(), &["AMD HIP runtime", "too old", "'hip"]);

    let sim = Sim::cuda("driver 11020\ncard vram=1G");
    told(CudaDriver::open_at(&library(Vendor::Nvidia, false)).unwrap_err(), &["11.2", "11.4"]);
    sim.set("");
    told(CudaDriver::open_at(&library(Vendor::Nvidia, false)).unwrap_err(), &["NVIDIA driver finds no card"]);
}

/// As `kernels-cuda/build` writes them, for a card that does not exist.
const FOR_NO_CARD: &[u8] = b"STRATAK1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

#[test]
fn a_card_without_code_is_named() {
    let sim = Sim::cuda("card name=\"GTX 1080\" arch=6.1 vram=8G");
    let found = DeviceFinder::with_driver(sim.driver(), Images::Packed(FOR_NO_CARD)).find().unwrap();
    let why = found[0].unusable.clone().expect("there is no code");
    assert!(why.contains("CUDA kernels") && why.contains("GTX 1080") && why.contains("sm_61"), "{why}");
    let damaged = DeviceFinder::with_driver(sim.driver(), Images::Packed(b"STRATAK2")).find().unwrap();
    assert!(damaged[0].unusable.as_ref().is_some_and(|why| why.contains("damaged")), "{damaged:?}");
    sim.assert_given_back("after finding");
}

#[test]
fn a_card_that_cannot_be_opened_is_named_and_the_others_are_used() {
    let sim = Sim::cuda("card vram=64M context=100M\ncard vram=1G\nfail context 2");
    let found = sim.found();
    assert!(found[0].unusable.as_ref().is_some_and(|why| why.contains("out of memory")), "{:?}", found[0].unusable);
    assert!(found[1].unusable.is_some(), "the context was refused");
    sim.assert_given_back("after finding");
    assert!(sim.found()[1].unusable.is_none(), "the next time it is taken");
}

fn sizes(weights_bytes: u64, state_bytes: u64, work_bytes: u64) -> ArenaSizes {
    ArenaSizes { weights_bytes, state_bytes, work_bytes, scratch_bytes: 0, lent_bytes: 0 }
}

fn slice(arena: ArenaKind, offset_bytes: u64, len_bytes: u64) -> Slice {
    Slice { arena, offset_bytes, len_bytes }
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as u8).collect()
}

#[test]
fn bytes_come_back_as_they_went() {
    for lazy in ["lazy 0", "lazy 1"] {
        for vendor in [Vendor::Nvidia, Vendor::Amd] {
            let sim = Sim::new(vendor, &format!("{lazy}\ncard vram=64M context=1M"));
            let mut card = sim.open(0);
            card.open(sizes(20 * MIB, 2 * MIB, MIB)).unwrap();
            // Longer than a piece of the staging memory, and of no round length.
            let sent = noise(9_500_001);
            let place = slice(ArenaKind::Weights, 256, sent.len() as u64);
            card.upload(place, &sent).unwrap();
            let mut back = vec![0; sent.len()];
            card.download(place, &mut back).unwrap();
            assert!(back == sent);
            card.clear(slice(ArenaKind::Weights, 1000, 5)).unwrap();
            card.download(place, &mut back).unwrap();
            assert_eq!(back[740..750], [sent[740], sent[741], sent[742], sent[743], 0, 0, 0, 0, 0, sent[749]]);
            drop(card);
            sim.assert_given_back("after a device was dropped");
        }
    }
}

#[test]
fn a_slice_outside_its_arena_is_refused() {
    let sim = Sim::cuda("card vram=64M context=1M");
    let mut card = sim.open(0);
    let early = card.upload(slice(ArenaKind::State, 0, 4), &[0; 4]).unwrap_err();
    assert!(matches!(early, BackendError::Rejected { .. }), "{early}");
    card.open(sizes(MIB, 4096, 0)).unwrap();
    for (arena, offset, len) in [(ArenaKind::State, 4093, 4), (ArenaKind::Work, 0, 1), (ArenaKind::Weights, u64::MAX, 2)] {
        let error = card.upload(slice(arena, offset, len), &vec![0; len as usize]).unwrap_err();
        assert!(matches!(&error, BackendError::OutOfBounds { arena: a, .. } if *a == arena), "{error}");
    }
    let error = card.upload(slice(ArenaKind::State, 0, 8), &[0; 4]).unwrap_err();
    assert!(error.to_string().contains("4 bytes for a slice of 8"), "{error}");
    assert!(card.open(sizes(1, 1, 1)).is_err());
}

#[test]
fn memory_that_is_not_there_is_refused_by_arena_and_bytes() {
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let sim = Sim::new(vendor, "card vram=32M context=1M");
        let mut card = sim.open(0);
        let error = card.open(sizes(20 * MIB, 20 * MIB, MIB)).unwrap_err();
        let BackendError::OutOfMemory { device, arena, bytes, .. } = &error else { panic!("{error}") };
        assert_eq!((device.as_str(), *arena, *bytes), (card.facts().id.as_str(), ArenaKind::State, 20 * MIB));
        assert_eq!(sim.counter("allocs"), 0, "the weights arena was given back");
        card.open(sizes(20 * MIB, 2 * MIB, MIB)).expect("the device is as it was");
        assert_eq!(card.memory().arenas_bytes, 23 * MIB);
    }
}

#[test]
fn host_memory_that_cannot_be_pinned_is_told_and_does_no_harm() {
    let sim = Sim::cuda("card vram=64M context=1M");
    let mut card = sim.open(0);
    card.open(sizes(MIB, 0, 0)).unwrap();
    let (sent, place) = (noise(100_000), slice(ArenaKind::Weights, 0, 100_000));
    for fault in ["fail pin 1", "fail pin 2"] {
        sim.command(fault);
    }
    card.upload(place, &sent).unwrap();
    card.freeze();
    let mut back = vec![0; sent.len()];
    card.download(place, &mut back).unwrap();
    assert!(back == sent);
    assert!(card.facts().detail.contains("not pinned: out of memory"), "{}", card.facts().detail);
    assert_eq!(card.memory().late_allocations, 0);
}

#[test]
fn a_lost_card_is_told_at_every_call_and_lets_go_of_everything() {
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let sim = Sim::new(vendor, "card vram=64M context=1M\ncard vram=64M context=1M");
        let mut cards = [sim.open(0), sim.open(1)];
        for card in &mut cards {
            card.open(sizes(MIB, 0, 0)).unwrap();
            card.upload(slice(ArenaKind::Weights, 0, 4), &[1; 4]).unwrap();
        }
        sim.command("lose 0");
        let first = cards[0].upload(slice(ArenaKind::Weights, 0, 4), &[2; 4]).unwrap_err();
        let told = first.to_string();
        assert!(told.contains(&cards[0].facts().id), "{told}");
        let mut four = [0; 4];
        assert!(cards[0].download(slice(ArenaKind::Weights, 0, 4), &mut four).is_err());
        assert!(cards[0].clear(slice(ArenaKind::Weights, 0, 4)).is_err());
        cards[1].download(slice(ArenaKind::Weights, 0, 4), &mut four).expect("the other card goes on");
        assert_eq!(four, [1; 4]);
        drop(cards);
    }
}
