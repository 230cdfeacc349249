//! The compiled GPU kernels that the program carries belong to the sources in the tree. `kernels-cuda/build --check` compiles
//! them again and compares; that takes minutes and compilers, so tests/run does it for some.

#[path = "common/skip.rs"]
mod skip;

use std::process::Command;

use skip::skipped;

#[test]
fn images_were_made_from_these_sources() {
    let script = "kernels-cuda/build";
    let result = match Command::new("python3").args([script, "--check-sources"]).current_dir(env!("CARGO_MANIFEST_DIR")).output()
    {
        Ok(result) => result,
        Err(missing) => return skipped(&format!("{script}: python3: {missing}")),
    };
    if result.status.code() == Some(3) {
        return skipped(&format!("{script}: {}", String::from_utf8_lossy(&result.stdout)));
    }
    let said = [result.stdout, result.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(result.status.success(), "{}{}run {script}", said[0], said[1]);
}
