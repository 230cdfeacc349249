//! Argument structs and constants as text: WGSL declarations, and the C header that CUDA and HIP kernels include. Made from the
//! layouts in [`super::args`], so that they cannot diverge from what the host writes.

use std::fmt::Write;

use super::args::{ArgsLayout, CONSTANTS, FieldType, LAYOUTS};
use super::kernels::{KernelInfo, Operand};
use super::run_block::{HEADER_WORDS, ROW_WORDS, RUN_OUTPUTS, RUN_OUTPUTS_AT, RUN_ROWS, RUN_SPANS, RUN_SPANS_AT, SPAN_WORDS};

/// Words of the run block's header and rows, by the names they have in the kernels.
const RUN_CONSTANTS: &[(&str, u32)] = &[
    ("RUN_ROWS", RUN_ROWS),
    ("RUN_OUTPUTS", RUN_OUTPUTS),
    ("RUN_SPANS", RUN_SPANS),
    ("RUN_SPANS_AT", RUN_SPANS_AT),
    ("RUN_OUTPUTS_AT", RUN_OUTPUTS_AT),
    ("RUN_ROWS_AT", HEADER_WORDS as u32),
    ("ROW_WORDS", ROW_WORDS as u32),
    ("ROW_SLOT", 0),
    ("ROW_INDEX", 1),
    ("ROW_STATE_READ", 2),
    ("ROW_STATE_WRITE", 3),
    ("ROW_SPAN", 4),
    ("ROW_IN_SPAN", 5),
    ("SPAN_WORDS", SPAN_WORDS as u32),
    ("SPAN_FIRST_ROW", 0),
    ("SPAN_ROWS", 1),
    ("SPAN_SLOT", 2),
    ("SPAN_INDEX", 3),
];

fn constants() -> impl Iterator<Item = &'static (&'static str, u32)> {
    CONSTANTS.iter().chain(RUN_CONSTANTS)
}

/// Constants of all WGSL kernels.
pub fn wgsl_constants() -> String {
    constants().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "const {name}: u32 = {value}u;");
        text
    })
}

/// Arguments and operands of a WGSL kernel, in bind group 0: arguments at binding 0, in the address space given, then
/// [`Operand::ALL`], of which one may have atomic words. Products have the arguments of all their parts, and choose.
pub fn wgsl_bindings(info: &KernelInfo, args_space: &str, atomic: Option<Operand>, parts: Option<u32>) -> String {
    let mut text = String::from("struct Args {\n");
    for field in info.args.fields {
        let ty = match field.ty {
            FieldType::U32 => "u32",
            FieldType::F32 => "f32",
        };
        let _ = writeln!(text, "    {}: {ty},", field.name);
    }
    let declared = match parts {
        Some(parts) => format!("parts: array<Args, {parts}>;\nvar<private> args: Args;"),
        None => "args: Args;".into(),
    };
    let _ = writeln!(text, "}}\n@group(0) @binding(0) var<{args_space}> {declared}");
    for operand in info.operands {
        let access = if operand.is_read_only() { "read" } else { "read_write" };
        let (name, binding) = (operand.name(), binding(*operand));
        let word = if atomic == Some(*operand) { "atomic<u32>" } else { "u32" };
        let _ = writeln!(text, "@group(0) @binding({binding}) var<storage, {access}> {name}: array<{word}>;");
    }
    text
}

/// The binding of an operand in WGSL kernels; 0 is that of the arguments.
pub fn binding(operand: Operand) -> u32 {
    1 + Operand::ALL.iter().position(|o| *o == operand).unwrap_or(0) as u32
}

/// `kernels-cuda/args.h`. Kernels define `u32` and `u64`: NVRTC has no standard headers.
pub fn c_header() -> String {
    let mut text = String::from(
        "// Made from src/backend/gpu/args.rs by `cargo run --example gpu_args_header`: change that, not this.\n#pragma once\n\n",
    );
    for (name, value) in constants() {
        let _ = writeln!(text, "constexpr u32 {name} = {value}u;");
    }
    text += "\n";
    LAYOUTS.iter().for_each(|layout| c_struct(&mut text, layout));
    text += "// Addresses of the windows that a launch sees; 0 for none.\nstruct Operands {\n";
    for operand in Operand::ALL {
        let _ = writeln!(text, "    u64 {};", operand.name());
    }
    text + "};\n"
}

fn c_struct(text: &mut String, layout: &ArgsLayout) {
    let _ = writeln!(text, "struct {} {{", layout.name);
    for field in layout.fields {
        let ty = match field.ty {
            FieldType::U32 => "u32",
            FieldType::F32 => "float",
        };
        let comment = if field.doc.is_empty() { String::new() } else { format!(" //{}", field.doc) };
        let _ = writeln!(text, "    {ty} {};{comment}", field.name);
    }
    let _ = writeln!(text, "}};\nstatic_assert(sizeof({}) == {}, \"{}\");\n", layout.name, layout.fields.len() * 4, layout.name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_in_the_tree_is_the_one_made_from_the_structs() {
        let held = include_str!("../../../kernels-cuda/args.h");
        assert!(held == c_header(), "run: cargo run --example gpu_args_header > kernels-cuda/args.h");
    }
}
