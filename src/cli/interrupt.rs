//! Ctrl-C: the first asks the work to stop at the next token, the second ends the program. While the program only waits for
//! input, the first one ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::{CliError, exit};

/// Set when the user wants to stop. Share it with the engine and with a generation.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    /// Nothing is being computed that could stop by itself.
    idle: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes over ctrl-C (and a polite request to end) for this process.
    pub fn install() -> Result<Interrupt, CliError> {
        let interrupt = Interrupt::default();
        let flag = Arc::clone(&interrupt.flag);
        let idle = Arc::clone(&interrupt.idle);
        let handler = move || {
            if flag.swap(true, Ordering::SeqCst) || idle.load(Ordering::SeqCst) {
                std::process::exit(i32::from(exit::INTERRUPTED));
            }
        };
        ctrlc::set_handler(handler).map_err(|e| CliError::Failed(format!("cannot take over ctrl-C: {e}")))?;
        Ok(interrupt)
    }

    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }

    /// Does something that only waits, such as reading a pipe: an interruption then ends the program at once.
    pub fn while_idle<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.idle.store(true, Ordering::SeqCst);
        let result = wait();
        self.idle.store(false, Ordering::SeqCst);
        result
    }

    /// Forgets an interruption that has been answered.
    pub fn reset(&self) {
        self.flag.store(false, Ordering::SeqCst);
    }
}
