//! The simulated GPU drivers (tests/sim) keep their promises, the kernels' block formats decode like the reference, and kernels
//! agree with plain arithmetic.

#[path = "common/skip.rs"]
mod skip;

use std::path::PathBuf;
use std::process::{Command, Output};

use skip::skipped;

fn run(command: &mut Command) -> Output {
    command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("the command starts")
}

/// Where the drivers lie, or `None` where there is no C++ compiler, which is said in the output.
fn build() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sim");
    let built = run(Command::new("tests/sim/build").arg(&folder));
    let said = String::from_utf8_lossy(&built.stderr);
    match built.status.code() {
        Some(0) => Some(folder),
        Some(2) => {
            skipped(&format!("simulated drivers: {said}"));
            None
        }
        _ => panic!("tests/sim/build failed:\n{said}"),
    }
}

#[test]
fn drivers_formats_and_kernels() {
    let Some(folder) = build() else { return };
    let here = folder.to_str().unwrap();
    for (program, argument) in [("selftest", here), ("formats_test", "tests/vectors"), ("kernels_test", here), ("tiles_test", "")]
    {
        let result = run(Command::new(folder.join(program)).arg(argument));
        let said = [result.stdout, result.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(result.status.success(), "{program}:\n{}{}", said[0], said[1]);
    }
}
