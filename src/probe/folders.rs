//! Folders of this user, where the system's conventions put them.

use std::env;
use std::path::PathBuf;

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// For what can be made anew: measurements.
pub fn cache_folder() -> Option<PathBuf> {
    let of_home = |path: &str| variable("HOME").map(|home| home.join(path));
    let folder = if cfg!(windows) {
        variable("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        of_home("Library/Caches")
    } else {
        variable("XDG_CACHE_HOME").or_else(|| of_home(".cache"))
    };
    folder.map(|folder| folder.join("strata"))
}

/// For what all sessions share and that need not survive a restart: locks.
pub fn runtime_folder() -> PathBuf {
    let runtime = if cfg!(any(windows, target_os = "macos")) { None } else { variable("XDG_RUNTIME_DIR") };
    let folder = runtime.map(|folder| folder.join("strata")).or_else(cache_folder);
    folder.unwrap_or_else(|| env::temp_dir().join("strata"))
}
