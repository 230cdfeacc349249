//! Breadcrumbs of HTTP: which requests have no response yet, and since when.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

type Open = BTreeMap<u64, (&'static str, Instant)>;

#[derive(Debug, Default)]
pub struct Doing {
    open: Mutex<(u64, Open)>,
}

/// A request is listed as long as this lives.
pub struct Listed {
    number: u64,
    doing: Arc<Doing>,
}

impl Doing {
    fn lock(&self) -> MutexGuard<'_, (u64, Open)> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn begin(self: &Arc<Doing>, route: &'static str) -> Listed {
        let (next, open) = &mut *self.lock();
        let number = *next;
        *next += 1;
        open.insert(number, (route, Instant::now()));
        Listed { number, doing: Arc::clone(self) }
    }

    /// Route and age of every open request, the oldest first.
    pub fn list(&self) -> Vec<(&'static str, Duration)> {
        self.lock().1.values().map(|(route, since)| (*route, since.elapsed())).collect()
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.doing.lock().1.remove(&self.number);
    }
}
