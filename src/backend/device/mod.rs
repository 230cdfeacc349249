//! What NVIDIA's and AMD's cards have in common: one device for both, over a [`Driver`] that each vendor implements.

mod driver;
mod error;
mod functions;
mod library;
mod owned;

pub use driver::{Architecture, CardFacts, DeviceAddress, DeviceMemoryInfo, Driver, Handle, LaunchShape, MemoryModel, Vendor};
pub use error::{Cause, DriverError, Unavailable};
pub(in crate::backend) use functions::function_table;
pub use functions::{MissingFunction, find};
pub use library::{leak_library, text, uuid_text};
pub use owned::{Context, DeviceMemory, DevicePiece, Event, Function, Graph, HostMemory, Module, Stream};
