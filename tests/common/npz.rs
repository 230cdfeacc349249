//! Reads the reference arrays: `.npz`, an archive of `.npy` files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use npyz::{Deserialize, NpyFile};

pub struct Npz {
    archive: zip::ZipArchive<File>,
}

impl Npz {
    pub fn open(path: &Path) -> Npz {
        let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Npz { archive: zip::ZipArchive::new(file).expect("an npz archive") }
    }

    pub fn has(&self, name: &str) -> bool {
        self.archive.index_for_name(&format!("{name}.npy")).is_some()
    }

    fn read<T: Deserialize>(&mut self, name: &str) -> (Vec<u64>, Vec<T>) {
        let mut bytes = Vec::new();
        let mut entry = self.archive.by_name(&format!("{name}.npy")).unwrap_or_else(|e| panic!("{name}: {e}"));
        entry.read_to_end(&mut bytes).expect("a readable entry");
        let npy = NpyFile::new(bytes.as_slice()).expect("an npy entry");
        let shape = npy.shape().to_vec();
        (shape, npy.into_vec().expect("entries of the expected type"))
    }

    pub fn ints(&mut self, name: &str) -> Vec<i32> {
        self.read(name).1
    }

    pub fn bytes(&mut self, name: &str) -> Vec<u8> {
        self.read(name).1
    }

    /// A one-dimensional array, or a matrix as its rows.
    pub fn floats(&mut self, name: &str) -> Vec<f32> {
        self.read(name).1
    }

    pub fn rows(&mut self, name: &str) -> Vec<Vec<f32>> {
        let (shape, data) = self.read::<f32>(name);
        let width = shape.iter().skip(1).product::<u64>() as usize;
        data.chunks(width).map(<[f32]>::to_vec).collect()
    }
}
