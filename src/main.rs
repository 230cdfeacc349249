use std::process::ExitCode;

fn main() -> ExitCode {
    strata::cli::main()
}
