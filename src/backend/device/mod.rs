//! What NVIDIA's and AMD's cards have in common: one device for both, over a [`Driver`] that each vendor implements.
//!
//! From below: [`Driver`] is a vendor's interface, call by call; `owned` gives every thing of a driver an owner; `copies`,
//! `arenas`, `card` and `prepared` are the parts of a device; [`DeviceBackend`] is the device, [`DeviceFinder`] finds cards.

mod arenas;
mod backend;
mod budget;
mod call;
mod card;
mod copies;
mod display;
mod driver;
mod error;
mod finder;
mod functions;
mod images;
mod library;
mod owned;
mod pins;
mod prepared;
mod rates;
mod target;

pub use backend::DeviceBackend;
pub use card::OpenCard;
pub use driver::{Architecture, CardFacts, DeviceAddress, DeviceMemoryInfo, Driver, Handle, LaunchShape, MemoryModel, Vendor};
pub use error::{Cause, DriverError, Unavailable};
pub use finder::{DeviceFinder, OpenDriver};
pub(in crate::backend) use functions::function_table;
pub use functions::{MissingFunction, find};
pub use images::{ImageError, Images};
pub use library::{LibraryError, leak_library, open_first, text, uuid_text};
pub use owned::{Context, DeviceMemory, DevicePiece, Event, Function, Graph, HostMemory, Module, Stream};
pub use target::target;
