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

#[cfg(windows)]
pub use windows::{pin_this_thread, processors};

/// The system does not tell, or does not pin.
#[cfg(not(any(target_os = "linux", windows)))]
pub fn processors() -> Vec<super::topology::Processor> {
    vec![]
}

#[cfg(not(any(target_os = "linux", windows)))]
pub fn pin_this_thread(_processor: usize) {}

/// Windows puts processors into groups of at most 64. A process begins in one of them; threads reach the others only if they are put
/// there.
#[cfg(windows)]
mod windows {
    use std::ffi::c_void;

    use super::groups::{self, GROUP_SIZE};
    use crate::backend::cpu::topology::Processor;

    #[repr(C)]
    struct GroupAffinity {
        mask: usize,
        group: u16,
        reserved: [u16; 3],
    }

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GetLogicalProcessorInformationEx(relationship: u32, buffer: *mut u8, length: *mut u32) -> i32;
        fn GetCurrentThread() -> *mut c_void;
        fn SetThreadGroupAffinity(thread: *mut c_void, affinity: *const GroupAffinity, previous: *mut GroupAffinity) -> i32;
    }

    /// All kinds of relations.
    const ALL: u32 = 0xFFFF;

    pub fn processors() -> Vec<Processor> {
        let mut len = 0;
        // SAFETY: without a buffer the call only tells how long it must be.
        unsafe { GetLogicalProcessorInformationEx(ALL, std::ptr::null_mut(), &raw mut len) };
        let mut buffer = vec![0u8; len as usize];
        // SAFETY: the buffer has the length that is given.
        let told = unsafe { GetLogicalProcessorInformationEx(ALL, buffer.as_mut_ptr(), &raw mut len) } != 0;
        if told { groups::processors(&buffer[..(len as usize).min(buffer.len())]) } else { vec![] }
    }

    pub fn pin_this_thread(processor: usize) {
        let affinity =
            GroupAffinity { mask: 1 << (processor % GROUP_SIZE), group: (processor / GROUP_SIZE) as u16, reserved: [0; 3] };
        // SAFETY: the handle is that of the thread itself, the affinity is readable, the one before is not asked for. A failure
        // leaves the thread where it was.
        let _ = unsafe { SetThreadGroupAffinity(GetCurrentThread(), &raw const affinity, std::ptr::null_mut()) };
    }
}

/// What Windows says of its processors, as bytes.
#[cfg(any(windows, test))]
mod groups {
    use crate::backend::cpu::topology::Processor;

    /// A processor's number is that of its group times this, and its place in the group.
    pub const GROUP_SIZE: usize = 64;

    const CORE: u32 = 0;
    const NUMA_NODE: u32 = 1;
    /// Where the count of masks and the masks lie in both kinds of entry, and how large a mask's entry is.
    const COUNT_AT: usize = 30;
    const MASKS_AT: usize = 32;
    const MASK_BYTES: usize = 16;
    /// Efficiency class of a core's entry: larger is faster.
    const CLASS_AT: usize = 9;
    const NODE_AT: usize = 8;

    fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
        bytes.get(at..at + N)?.try_into().ok()
    }

    /// The processors that an entry's masks name.
    fn named(entry: &[u8]) -> Vec<usize> {
        // Entries of nodes from before groups were counted have one mask and a count of 0.
        let count = word(entry, COUNT_AT).map_or(0, u16::from_le_bytes).max(1);
        let masks = (0..usize::from(count)).filter_map(|i| {
            let at = MASKS_AT + i * MASK_BYTES;
            Some((u64::from_le_bytes(word(entry, at)?), usize::from(u16::from_le_bytes(word(entry, at + 8)?))))
        });
        masks
            .flat_map(|(mask, group)| (0..GROUP_SIZE).filter(move |b| mask >> b & 1 == 1).map(move |b| group * GROUP_SIZE + b))
            .collect()
    }

    /// `SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX` entries, one behind the other.
    pub fn processors(mut bytes: &[u8]) -> Vec<Processor> {
        let (mut found, mut nodes) = (vec![], vec![]);
        while let (Some(kind), Some(len)) = (word(bytes, 0).map(u32::from_le_bytes), word(bytes, 4).map(u32::from_le_bytes)) {
            let Some((entry, rest)) = bytes.split_at_checked(len as usize).filter(|_| len >= 8) else { break };
            bytes = rest;
            match kind {
                CORE => {
                    let (named, speed) = (named(entry), entry.get(CLASS_AT).map_or(0, |class| u64::from(*class)));
                    let core = named.first().copied().unwrap_or(0);
                    found.extend(named.into_iter().map(|number| Processor { number, core, node: 0, speed }));
                }
                NUMA_NODE => {
                    let node = word(entry, NODE_AT).map_or(0, u32::from_le_bytes) as usize;
                    nodes.extend(named(entry).into_iter().map(|number| (number, node)));
                }
                _ => {}
            }
        }
        for processor in &mut found {
            let node = nodes.iter().find(|(number, _)| *number == processor.number);
            processor.node = node.map_or(0, |(_, node)| *node);
        }
        found.sort_by_key(|p| p.number);
        found
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn entry(kind: u32, first: [u8; 4], masks: &[(u64, u16)]) -> Vec<u8> {
            let mut bytes = vec![0; MASKS_AT + masks.len() * MASK_BYTES];
            let len = bytes.len() as u32;
            bytes[..4].copy_from_slice(&kind.to_le_bytes());
            bytes[4..8].copy_from_slice(&len.to_le_bytes());
            bytes[8..12].copy_from_slice(&first);
            bytes[COUNT_AT..COUNT_AT + 2].copy_from_slice(&(masks.len() as u16).to_le_bytes());
            for (i, (mask, group)) in masks.iter().enumerate() {
                let at = MASKS_AT + i * MASK_BYTES;
                bytes[at..at + 8].copy_from_slice(&mask.to_le_bytes());
                bytes[at + 8..at + 10].copy_from_slice(&group.to_le_bytes());
            }
            bytes
        }

        #[test]
        fn processors_of_all_groups_are_found_with_core_and_node() {
            // A core with two threads and a slower one in group 0, a core in group 1; a cache, which is passed over.
            let text = [
                entry(CORE, [1, 1, 0, 0], &[(0b11, 0)]),
                entry(2, [0; 4], &[(0b111, 0)]),
                entry(CORE, [0, 0, 0, 0], &[(0b100, 0)]),
                entry(CORE, [0, 1, 0, 0], &[(0b1, 1)]),
                entry(NUMA_NODE, [0; 4], &[(0b111, 0)]),
                entry(NUMA_NODE, [1, 0, 0, 0], &[(0b1, 1)]),
            ]
            .concat();
            let found = processors(&text);
            let of = |number, core, node, speed| Processor { number, core, node, speed };
            assert_eq!(found, [of(0, 0, 0, 1), of(1, 0, 0, 1), of(2, 2, 0, 0), of(64, 64, 1, 1)]);
            // What is cut short is read as far as it goes.
            assert_eq!(processors(&text[..100]).len(), 3);
            assert_eq!(processors(&[0; 7]), []);
            assert_eq!(processors(&[0; 64]), [], "an entry without a length ends it");
        }
    }
}

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
