//! Simulated drivers: our kernels on cards that a test describes, with the faults it asks for. What a settings line may say is in
//! `tests/sim/README.md`. A library simulates one PC at a time, so a test that holds a [`Sim`] has that vendor's for itself.
#![allow(dead_code)] // every test binary uses its own part

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_long};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use strata::backend::cuda::CudaDriver;
use strata::backend::device::{DeviceFinder, Driver, Images, Vendor, find, leak_library};
use strata::backend::discovery::{CardOptions, FoundCard, NamedCard, Standing};
use strata::backend::hip::HipDriver;
use strata::backend::{Backend, Finder};

/// The kernels as a simulated driver runs them, on any card.
pub const IMAGES: Images = Images::Whole(b"strata-sim-kernels\0");

/// Builds the drivers once, where they are older than their sources.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sim");
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sim/build");
        let built = Command::new(script).arg(&folder).output().expect("tests/sim/build runs");
        let told = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "simulated drivers need a C++ compiler (tests/run installs g++): {told}");
        folder
    })
}

/// The file of a vendor's driver; `old` is one of before graphs.
pub fn library(vendor: Vendor, old: bool) -> PathBuf {
    let name = match vendor {
        Vendor::Nvidia => "libcuda.so.1",
        Vendor::Amd => "libamdhip64.so.6",
    };
    if old { folder().join("old").join(name) } else { folder().join(name) }
}

struct Functions {
    configure: unsafe extern "C" fn(*const c_char) -> c_int,
    command: unsafe extern "C" fn(*const c_char) -> c_int,
    counter: unsafe extern "C" fn(*const c_char) -> c_long,
    error: unsafe extern "C" fn() -> *const c_char,
}

fn functions(vendor: Vendor) -> &'static Functions {
    static ALL: [OnceLock<Functions>; 2] = [OnceLock::new(), OnceLock::new()];
    ALL[vendor as usize].get_or_init(|| {
        let library = leak_library(&library(vendor, false)).unwrap();
        // SAFETY: the types are those of `tests/sim/settings.cpp`.
        unsafe {
            Functions {
                configure: find(library, "strata_sim_configure").unwrap(),
                command: find(library, "strata_sim_command").unwrap(),
                counter: find(library, "strata_sim_counter").unwrap(),
                error: find(library, "strata_sim_error").unwrap(),
            }
        }
    })
}

/// A PC with simulated cards of one vendor.
pub struct Sim {
    vendor: Vendor,
    functions: &'static Functions,
    _world: MutexGuard<'static, ()>,
}

impl Sim {
    /// `settings`: one a line.
    pub fn new(vendor: Vendor, settings: &str) -> Sim {
        static WORLDS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];
        let world = WORLDS[vendor as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let sim = Sim { vendor, functions: functions(vendor), _world: world };
        sim.set(settings);
        sim
    }

    pub fn cuda(settings: &str) -> Sim {
        Sim::new(Vendor::Nvidia, settings)
    }

    pub fn hip(settings: &str) -> Sim {
        Sim::new(Vendor::Amd, settings)
    }

    /// Tears the PC down and sets up another one.
    pub fn set(&self, settings: &str) {
        let text = CString::new(settings).unwrap();
        // SAFETY: the function reads a text.
        assert_eq!(unsafe { (self.functions.configure)(text.as_ptr()) }, 0, "{}", self.error());
    }

    /// A change while it runs.
    pub fn command(&self, line: &str) {
        let text = CString::new(line).unwrap();
        // SAFETY: the function reads a text.
        assert_eq!(unsafe { (self.functions.command)(text.as_ptr()) }, 0, "{}", self.error());
    }

    fn error(&self) -> String {
        // SAFETY: the function gives a text that lives until the next call.
        unsafe { CStr::from_ptr((self.functions.error)()) }.to_string_lossy().into_owned()
    }

    pub fn counter(&self, name: &str) -> i64 {
        let text = CString::new(name).unwrap();
        // SAFETY: the function reads a text.
        let count = unsafe { (self.functions.counter)(text.as_ptr()) };
        assert!(count >= 0, "there is no counter '{name}'");
        count
    }

    pub fn driver(&self) -> Arc<dyn Driver> {
        let library = library(self.vendor, false);
        match self.vendor {
            Vendor::Nvidia => CudaDriver::open_at(&library).unwrap(),
            Vendor::Amd => HipDriver::open_at(&library).unwrap(),
        }
    }

    pub fn finder(&self) -> DeviceFinder {
        DeviceFinder::with_driver(self.driver(), IMAGES)
    }

    pub fn found(&self) -> Vec<FoundCard> {
        self.finder().find().unwrap()
    }

    /// A card as a device without memory yet.
    pub fn open(&self, number: usize) -> Box<dyn Backend> {
        let card = self.found().swap_remove(number);
        let id = format!("{}:{number}", card.interface.id());
        let named = NamedCard { id, card, standing: Standing::Usable };
        self.finder().open(&named, &CardOptions::default()).unwrap()
    }

    /// Nothing of ours is left on any card or pinned.
    pub fn assert_given_back(&self, when: &str) {
        for counter in ["allocs", "pins", "modules", "streams", "events", "graphs"] {
            assert_eq!(self.counter(counter), 0, "{when}: {counter} are left");
        }
    }
}

/// Cards of every kind that kernels are made for.
pub struct Zoo {
    cuda: Sim,
    hip: Sim,
}

impl Zoo {
    /// `settings` are those of both PCs, beside their cards.
    pub fn new(settings: &str) -> Zoo {
        Zoo {
            cuda: Sim::cuda(&format!("{settings}\n{}", "card vram=2G context=1M arch=8.6\n".repeat(4))),
            hip: Sim::hip(&format!(
                "{settings}\ncard vram=2G context=1M arch=gfx1100 wave=32\ncard vram=2G context=1M arch=gfx906 wave=64"
            )),
        }
    }

    /// That of this thread, if there is one.
    pub fn shared() -> Rc<Zoo> {
        thread_local! {
            static SHARED: RefCell<Weak<Zoo>> = RefCell::default();
        }
        SHARED.with_borrow_mut(|shared| {
            shared.upgrade().unwrap_or_else(|| {
                let zoo = Rc::new(Zoo::new(""));
                *shared = Rc::downgrade(&zoo);
                zoo
            })
        })
    }

    pub fn cuda(&self, number: usize) -> Box<dyn Backend> {
        self.cuda.open(number)
    }

    pub fn hip(&self) -> Box<dyn Backend> {
        self.hip.open(0)
    }

    /// 64 threads in step.
    pub fn hip_64(&self) -> Box<dyn Backend> {
        self.hip.open(1)
    }

    /// One of each.
    pub fn kinds(&self) -> [(&'static str, Box<dyn Backend>); 3] {
        [("CUDA", self.cuda(0)), ("HIP", self.hip()), ("HIP, 64 in step", self.hip_64())]
    }

    pub fn counter(&self, name: &str) -> i64 {
        self.cuda.counter(name) + self.hip.counter(name)
    }

    pub fn assert_given_back(&self, when: &str) {
        self.cuda.assert_given_back(when);
        self.hip.assert_given_back(when);
    }
}
