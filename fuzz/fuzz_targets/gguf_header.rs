//! Any bytes as a GGUF file: opening must not panic, and what opens must lie inside the bytes.
//!
//! ```text
//! cargo +nightly fuzz run gguf_header -- -rss_limit_mb=512 -malloc_limit_mb=64
//! ```
//!
//! Small files of the test `gguf_mutation` are a good corpus; the large fixtures slow the fuzzer down.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strata::gguf::ModelFiles;

fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = ModelFiles::from_bytes("fuzz.gguf", bytes.to_vec()) else { return };
    for tensor in model.tensors() {
        let mut last = [0];
        model.read_at(tensor, tensor.bytes - 1, &mut last).expect("every tensor lies inside the file");
        assert_eq!(tensor.row_bytes() * tensor.rows(), tensor.bytes);
    }
    for (key, value) in model.metadata().iter() {
        let _ = (value.to_string(), model.metadata().u32(key), model.metadata().i32s(key));
    }
});
