//! What is found, what is absent, and memory without a model.

use super::sim_support::*;
use strata::backend::cuda::CudaDriver;
use strata::backend::device::{DeviceFinder, Images, Unavailable, Vendor};
use strata::backend::hip::HipDriver;
use strata::backend::{ArenaSizes, BackendError, Finder};
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
fn free_memory_is_what_is_left_with_context_and_kernels_open() {
    let sim = Sim::cuda("card vram=1G context=100M module=7M other=200M");
    let finder = sim.finder();
    let card = finder.find().unwrap().remove(0);
    assert_eq!(card.free_bytes, (1024 - 100 - 7 - 200) * MIB);
    assert_eq!(card.driver_bytes.context_bytes, Some(0), "it is in the figure already");
    sim.assert_given_back("after finding");
    assert_eq!(sim.counter("bytes"), 0, "the context was given back too");
    sim.command("take 0 50M");
    assert_eq!(finder.free_bytes(&card), Some(card.free_bytes - 50 * MIB));
    sim.command("give 0 250M");
    assert_eq!(finder.free_bytes(&card), Some(card.free_bytes + 200 * MIB));
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
    let sim = Sim::cuda("card vram=64M context=100M\ncard vram=1G\nfail module 1");
    let found = sim.found();
    assert!(found[0].unusable.as_ref().is_some_and(|why| why.contains("out of memory")), "{:?}", found[0].unusable);
    assert!(found[1].unusable.is_some(), "the module was refused");
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
