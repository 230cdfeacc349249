//! Things of a driver with an owner: each gives itself back when it is dropped, and keeps alive what it needs.

use std::ffi::c_void;
use std::sync::Arc;

use super::{CardFacts, DeviceAddress, DeviceMemoryInfo, Driver, DriverError, Handle, LaunchShape};

/// A card's context. Calls on things of a card first make it current on their thread.
#[derive(Debug)]
pub struct Context {
    driver: Arc<dyn Driver>,
    facts: CardFacts,
    handle: Handle,
}

impl Context {
    pub fn open(driver: Arc<dyn Driver>, facts: CardFacts) -> Result<Arc<Context>, DriverError> {
        let handle = driver.retain_context(facts.ordinal)?;
        Ok(Arc::new(Context { driver, facts, handle }))
    }

    pub fn facts(&self) -> &CardFacts {
        &self.facts
    }

    /// The driver, with this context current.
    fn driver(&self) -> Result<&dyn Driver, DriverError> {
        // SAFETY: the handle is this context's own.
        unsafe { self.driver.make_current(self.facts.ordinal, self.handle)? };
        Ok(&*self.driver)
    }

    /// For drops: a context that is broken, or a driver that is shutting down, has nothing to give back.
    fn give_back(&self, free: impl FnOnce(&dyn Driver) -> Result<(), DriverError>) {
        let _ = self.driver().and_then(free);
    }

    pub fn memory_info(&self) -> Result<DeviceMemoryInfo, DriverError> {
        // SAFETY: the context is current.
        unsafe { self.driver()?.memory_info() }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything of this context holds an `Arc` of it, so nothing is left. Errors: as in `give_back`.
        let _ = unsafe { self.driver.release_context(self.facts.ordinal, self.handle) };
    }
}

/// Memory of a card.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    address: DeviceAddress,
    bytes: u64,
}

impl DeviceMemory {
    /// `bytes` bytes; none at all are an address that nobody uses.
    pub fn new(context: &Arc<Context>, bytes: u64) -> Result<DeviceMemory, DriverError> {
        let address = match bytes {
            0 => DeviceAddress(0),
            // SAFETY: the context is current.
            _ => unsafe { context.driver()?.alloc(bytes)? },
        };
        Ok(DeviceMemory { context: Arc::clone(context), address, bytes })
    }

    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where a piece lies; `None` if it is not inside.
    pub fn piece(&self, offset_bytes: u64, len_bytes: u64) -> Option<DevicePiece> {
        let end = offset_bytes.checked_add(len_bytes)?;
        (end <= self.bytes).then(|| DevicePiece { address: self.address.plus(offset_bytes), bytes: len_bytes as usize })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the address is this memory's own; its users were told to finish before their owner dropped it.
            self.context.give_back(|driver| unsafe { driver.free(self.address) });
        }
    }
}

/// A piece of a card's memory, made by [`DeviceMemory::piece`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePiece {
    address: DeviceAddress,
    bytes: usize,
}

impl DevicePiece {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn part(&self, offset_bytes: usize, len_bytes: usize) -> DevicePiece {
        assert!(offset_bytes + len_bytes <= self.bytes);
        DevicePiece { address: self.address.plus(offset_bytes as u64), bytes: len_bytes }
    }
}

/// Host memory of fixed place. Pinned if the system allowed it: then copies need no detour.
#[derive(Debug)]
pub struct HostMemory {
    context: Arc<Context>,
    memory: Place,
    bytes: usize,
}

#[derive(Debug)]
enum Place {
    Pinned(*mut u8),
    Pageable(Vec<u8>),
}

// SAFETY: the pinned pointer is owned like a box; only `bytes` and `bytes_mut` lead to it, with the borrows of their owner.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// `bytes` bytes of zeroes, pinned, or pageable with the driver's reason.
    pub fn new(context: &Arc<Context>, bytes: usize) -> (HostMemory, Option<DriverError>) {
        // SAFETY: the context is current.
        let pinned = context.driver().and_then(|driver| unsafe { driver.alloc_pinned(bytes) });
        let (memory, refusal) = match pinned {
            Ok(memory) => {
                // SAFETY: the driver has given `bytes` bytes.
                unsafe { memory.write_bytes(0, bytes) };
                (Place::Pinned(memory), None)
            }
            Err(error) => (Place::Pageable(vec![0; bytes]), Some(error)),
        };
        (HostMemory { context: Arc::clone(context), memory, bytes }, refusal)
    }

    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            // SAFETY: the driver has given `self.bytes` bytes, which `new` has written.
            Place::Pinned(memory) => unsafe { std::slice::from_raw_parts(*memory, self.bytes) },
            Place::Pageable(bytes) => bytes,
        }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            // SAFETY: as in `bytes`, and the borrow of `self` is exclusive.
            Place::Pinned(memory) => unsafe { std::slice::from_raw_parts_mut(*memory, self.bytes) },
            Place::Pageable(bytes) => bytes,
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Place::Pinned(memory) = self.memory {
            // SAFETY: the pointer is this memory's own; `Copies` waits for its copies before it drops it.
            self.context.give_back(|driver| unsafe { driver.free_pinned(memory) });
        }
    }
}

/// Host memory of somebody else, pinned where it lies.
#[derive(Debug)]
pub struct HostPin {
    context: Arc<Context>,
    memory: *mut u8,
}

// SAFETY: the pointer is only a number here: nothing is read or written through it.
unsafe impl Send for HostPin {}
// SAFETY: as above.
unsafe impl Sync for HostPin {}

impl HostPin {
    /// # Safety
    /// The memory stays mapped until this is dropped.
    pub unsafe fn new(context: &Arc<Context>, memory: *mut [u8]) -> Result<HostPin, DriverError> {
        let at = memory.cast::<u8>();
        // SAFETY: the context is current; the rest is the caller's.
        unsafe { context.driver()?.pin(at, memory.len())? };
        Ok(HostPin { context: Arc::clone(context), memory: at })
    }
}

impl Drop for HostPin {
    fn drop(&mut self) {
        // SAFETY: it was pinned once, by `new`.
        self.context.give_back(|driver| unsafe { driver.unpin(self.memory) });
    }
}

/// A mark in a stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    handle: Handle,
}

impl Event {
    pub fn new(context: &Arc<Context>) -> Result<Event, DriverError> {
        // SAFETY: the context is current.
        let handle = unsafe { context.driver()?.create_event()? };
        Ok(Event { context: Arc::clone(context), handle })
    }

    /// Waits on the host until the stream has passed the mark. An event that was never recorded is passed.
    pub fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event is alive and of this context.
        unsafe { self.context.driver()?.wait_host(self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is this event's own.
        self.context.give_back(|driver| unsafe { driver.destroy_event(self.handle) });
    }
}

/// Work that is done in order.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    handle: Handle,
}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Stream, DriverError> {
        // SAFETY: the context is current.
        let handle = unsafe { context.driver()?.create_stream()? };
        Ok(Stream { context: Arc::clone(context), handle })
    }

    pub fn record(&self, event: &Event) -> Result<(), DriverError> {
        // SAFETY: both are alive and of one context.
        unsafe { self.context.driver()?.record_event(event.handle, self.handle) }
    }

    /// Later work of this stream waits until the event's stream has passed its mark.
    pub fn wait_for(&self, event: &Event) -> Result<(), DriverError> {
        // SAFETY: both are alive and of one context.
        unsafe { self.context.driver()?.wait_event(self.handle, event.handle) }
    }

    pub fn synchronise(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is alive.
        unsafe { self.context.driver()?.synchronise(self.handle) }
    }

    /// # Safety
    /// `from` must stay as it is until the stream has passed the copy, and `to` must be alive.
    pub unsafe fn copy_in(&self, to: DevicePiece, from: &[u8]) -> Result<(), DriverError> {
        assert_eq!(to.bytes, from.len());
        // SAFETY: sizes agree; the rest is the caller's.
        unsafe { self.context.driver()?.copy_in(to.address, from.as_ptr(), to.bytes, self.handle) }
    }

    /// # Safety
    /// `to` must not be looked at until the stream has passed the copy, and `from` must be alive.
    pub unsafe fn copy_out(&self, to: &mut [u8], from: DevicePiece) -> Result<(), DriverError> {
        assert_eq!(to.len(), from.bytes);
        // SAFETY: sizes agree; the rest is the caller's.
        unsafe { self.context.driver()?.copy_out(to.as_mut_ptr(), from.address, from.bytes, self.handle) }
    }

    /// # Safety
    /// Both must be alive, and not overlap.
    pub unsafe fn copy_within(&self, to: DevicePiece, from: DevicePiece) -> Result<(), DriverError> {
        assert_eq!(to.bytes, from.bytes);
        // SAFETY: sizes agree; the rest is the caller's.
        unsafe { self.context.driver()?.copy_within(to.address, from.address, to.bytes, self.handle) }
    }

    /// # Safety
    /// `to` must be alive.
    pub unsafe fn fill(&self, to: DevicePiece, byte: u8) -> Result<(), DriverError> {
        if to.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the piece lies in its memory; the rest is the caller's.
        unsafe { self.context.driver()?.fill(to.address, byte, to.bytes, self.handle) }
    }

    /// # Safety
    /// The arguments must be those that the kernel declares, and what they point to must be alive until the stream has passed.
    pub unsafe fn launch(
        &self,
        function: &Function,
        shape: LaunchShape,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        // SAFETY: the function keeps its module alive; the rest is the caller's.
        unsafe { self.context.driver()?.launch(function.handle, shape, self.handle, arguments) }
    }

    /// Writes down what `work` puts on this stream, without doing it.
    pub fn capture(&self, work: impl FnOnce() -> Result<(), DriverError>) -> Result<Graph, DriverError> {
        let driver = self.context.driver()?;
        // SAFETY: the stream is alive.
        unsafe { driver.begin_capture(self.handle)? };
        let done = work();
        // A capture must be ended in any case, or the stream stays unusable.
        // SAFETY: as above.
        let graph = unsafe { self.context.driver()?.end_capture(self.handle) };
        let graph = graph.map(|handle| Graph { context: Arc::clone(&self.context), handle });
        done.and(graph)
    }

    /// # Safety
    /// What the captured work uses must be alive until the stream has passed.
    pub unsafe fn launch_graph(&self, graph: &Graph) -> Result<(), DriverError> {
        // SAFETY: both are alive and of one context; the rest is the caller's.
        unsafe { self.context.driver()?.launch_graph(graph.handle, self.handle) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handle is this stream's own.
        self.context.give_back(|driver| unsafe { driver.destroy_stream(self.handle) });
    }
}

/// Kernels of one image on a card.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    handle: Handle,
}

impl Module {
    pub fn load(context: &Arc<Context>, image: &[u8]) -> Result<Arc<Module>, DriverError> {
        // SAFETY: the context is current.
        let handle = unsafe { context.driver()?.load_module(image)? };
        Ok(Arc::new(Module { context: Arc::clone(context), handle }))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: functions hold an `Arc` of their module, so none is left. Graphs hold none: `Prepared` drops them before the
        // functions that it captured.
        self.context.give_back(|driver| unsafe { driver.unload_module(self.handle) });
    }
}

/// A kernel that can be launched.
#[derive(Debug, Clone)]
pub struct Function {
    _module: Arc<Module>,
    handle: Handle,
}

impl Function {
    pub fn find(module: &Arc<Module>, name: &str) -> Result<Function, DriverError> {
        let driver = module.context.driver()?;
        // SAFETY: the module is alive.
        let handle = unsafe { driver.function(module.handle, name)? };
        Ok(Function { _module: Arc::clone(module), handle })
    }
}

/// Captured work.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    handle: Handle,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the handle is this graph's own.
        self.context.give_back(|driver| unsafe { driver.destroy_graph(self.handle) });
    }
}
