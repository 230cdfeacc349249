//! Which processors this process may use, and pinning a thread to one of them. Pinning is a wish: where it fails or does not
//! exist the scheduler decides.

/// Processors that this thread may run on, in order; empty where the system does not tell.
#[cfg(target_os = "linux")]
pub fn allowed_processors() -> Vec<usize> {
    // SAFETY: all-zero bytes are a valid empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable and its size is given.
    let failed = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0;
    if failed {
        return vec![];
    }
    let capacity = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: `CPU_ISSET` reads the bit of a processor below the capacity of the set.
    (0..capacity).filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) }).collect()
}

#[cfg(target_os = "linux")]
pub fn pin_this_thread(processor: usize) {
    if processor >= 8 * size_of::<libc::cpu_set_t>() {
        return;
    }
    // SAFETY: all-zero bytes are a valid empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the processor is below the capacity of the set, as checked above.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: `set` is readable and its size is given. A failure leaves the thread where it was.
    let _ = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}

#[cfg(not(target_os = "linux"))]
pub fn allowed_processors() -> Vec<usize> {
    vec![]
}

#[cfg(not(target_os = "linux"))]
pub fn pin_this_thread(_processor: usize) {}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn there_is_a_processor_and_pinning_to_it_works() {
        let first = super::allowed_processors()[0];
        std::thread::spawn(move || {
            super::pin_this_thread(first);
            assert_eq!(super::allowed_processors(), vec![first]);
        })
        .join()
        .unwrap();
    }
}
