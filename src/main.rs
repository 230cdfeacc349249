use std::process::ExitCode;

fn main() -> ExitCode {
    quieten_mesa();
    strata::cli::main()
}

/// Mesa's layer that reorders cards looks for a desktop and complains on the terminal where there is none. Cards are numbered by
/// their place on the bus here, so its order does not matter.
fn quieten_mesa() {
    #[cfg(target_os = "linux")]
    // SAFETY: no other thread exists yet.
    unsafe {
        std::env::set_var("NODEVICE_SELECT", "1");
    }
}
