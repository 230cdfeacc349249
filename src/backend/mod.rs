//! Backends: memory, kernel launch and queues, nothing else.

pub mod cpu;
