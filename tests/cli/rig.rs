//! Runs the built program.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// What a run printed and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!(self.code, Some(0), "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// Asserts that the run failed with `code` and that its error line holds every one of `words`.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.out, self.err);
        for word in words {
            assert!(self.err.contains(word), "'{word}' is not in: {}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }

    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        let ran = self.ok();
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {}", ran.out))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    // Measurements of this PC are kept for all tests, and not among those of the user.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache");
    command.env("XDG_CACHE_HOME", &cache).env("LOCALAPPDATA", &cache);
    // Vulkan drivers for desktops complain on standard error where a session has no such folder.
    command.env("XDG_RUNTIME_DIR", &cache);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn strata(args: &[&str]) -> Ran {
    command(args).output().expect("the program starts").into()
}

/// With text on standard input.
pub fn strata_with_input(args: &[&str], input: &str) -> Ran {
    let mut child = command(args).stdin(Stdio::piped()).spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).expect("the program reads its input");
    drop(stdin);
    child.wait_with_output().expect("the program ends").into()
}

/// The user's ctrl-C.
#[cfg(unix)]
pub fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("there is a kill");
    assert!(sent.success());
}

/// Waits until something was written to standard output.
pub fn first_byte(child: &mut Child) {
    let out = child.stdout.as_mut().expect("piped");
    let mut byte = [0];
    out.read_exact(&mut byte).expect("some output");
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub fn path(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

/// The random model: small, and quick even where nothing is vectorised.
pub fn random_model() -> String {
    path(&fixture("tiny-random-BF16.gguf")).to_owned()
}
