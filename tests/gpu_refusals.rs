//! Promise: whichever allocation of a card the driver refuses, the program ends with an error that names the card, and neither
//! panics nor hangs nor answers. A Vulkan layer (`tests/sim/vulkan_layer.cpp`) refuses one allocation after the other, between the
//! loader and the real driver. Small buffers share a driver's allocation; `gpu_models.rs` refuses them one by one.
#![cfg(target_os = "linux")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::gpu::software_card;
use common::skip::skipped;
use common::{RANDOM, model_path};

const LAYER: &str = "VK_LAYER_STRATA_refuses";
/// A start takes a second or two; compiling all kernels for the first time, half a minute under load.
const PATIENCE: Duration = Duration::from_secs(300);

/// Builds the layer; `None` where there is no C++ compiler.
fn layer() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vulkan-layer");
    std::fs::create_dir_all(&folder).expect("a folder for the layer");
    let library = folder.join("libstrata_vulkan_layer.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sim/vulkan_layer.cpp");
    let flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-cast-function-type", "-fPIC", "-shared", "-o"];
    let built = Command::new("g++").args(flags).arg(&library).arg(source).output().ok()?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let about = serde_json::json!({
        "file_format_version": "1.1.0",
        "layer": {
            "name": LAYER, "type": "GLOBAL", "library_path": library, "api_version": "1.3.0", "implementation_version": "1",
            "description": "refuses an allocation",
            "functions": {"vkGetInstanceProcAddr": "strata_layer_instance", "vkGetDeviceProcAddr": "strata_layer_device"},
        },
    });
    std::fs::write(folder.join("layer.json"), about.to_string()).expect("the layer's description");
    Some(folder)
}

/// Runs the program on the card under the layer; the k-th allocation is refused, none for 0.
fn run(layer: &Path, card: &str, k: u32) -> Output {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache");
    let model = model_path(RANDOM);
    let mut child = Command::new(env!("CARGO_BIN_EXE_strata"))
        .args(["run", "-m", model.to_str().expect("a path in UTF-8"), "--device", card, "-n", "1", "-c", "256", "hello"])
        .env("XDG_CACHE_HOME", &cache)
        .env("XDG_RUNTIME_DIR", &cache)
        .env("VK_ADD_LAYER_PATH", layer)
        .env("VK_INSTANCE_LAYERS", LAYER)
        .env("STRATA_LAYER_REFUSES", k.to_string())
        .env("STRATA_LAYER_COUNTS", layer.join("asked"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let started = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if started.elapsed() > PATIENCE {
            child.kill().expect("a child that runs");
            panic!("allocation {k} refused: the program hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("the child's output")
}

#[test]
fn every_refused_allocation_is_an_error_that_names_the_card() {
    let Some(card) = software_card() else { return };
    let Some(layer) = layer() else { return skipped("refused allocations: no C++ compiler (Debian: g++)") };
    let good = run(&layer, &card.id, 0);
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
    let asked = std::fs::read_to_string(layer.join("asked")).expect("the layer was in use");
    let asked: u32 = asked.trim().parse().expect("a number");
    assert!(asked >= 2, "only {asked} allocations: one of the device itself, and blocks for buffers");
    for k in 1..=asked {
        let refused = run(&layer, &card.id, k);
        let told = String::from_utf8_lossy(&refused.stderr);
        let code = refused.status.code().unwrap_or_else(|| panic!("allocation {k} of {asked}: a signal ended it: {told}"));
        assert!(code != 0 && code != 101, "allocation {k} of {asked}: code {code}: {told}");
        let last = told.lines().last().unwrap_or_default();
        assert!(last.contains(&card.id) && last.to_lowercase().contains("memory"), "allocation {k} of {asked}: {told}");
    }
}
