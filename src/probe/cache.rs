//! Measurements that are kept between runs: measured once, at first use, one entry for each host, disk and card. Of two
//! measurements the better one is kept: what else the machine does can only make one too low.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::disk::DiskSpeeds;
use super::speeds::HostSpeeds;
use crate::backend::discovery::CardRates;
use crate::gguf::write_whole;
use crate::plan::is_usable_rate;
use crate::quant::Format;

/// The version of the file; another one is measured anew.
const VERSION: u32 = 1;
const FILE: &str = "measured.toml";

/// An entry: whose measurement it is, and what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry<T> {
    pub of: String,
    #[serde(flatten)]
    pub speeds: T,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    #[serde(default, rename = "host")]
    hosts: Vec<Entry<HostSpeeds>>,
    /// How fast the CPU of a host multiplies weights of a format: `of` names both.
    #[serde(default, rename = "format", skip_serializing_if = "Vec::is_empty")]
    formats: Vec<Entry<FormatSpeed>>,
    #[serde(default, rename = "disk")]
    disks: Vec<Entry<DiskSpeeds>>,
    #[serde(default, rename = "card")]
    cards: Vec<Entry<CardSpeeds>>,
}

/// GB/s (10^9) of weights of a format that come from memory and are multiplied with one row of activations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct FormatSpeed {
    gbs: f64,
}

/// Rates of a card as its backend measured them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CardSpeeds {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gbs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_gbs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_median_gbs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_tflops: Option<f64>,
}

impl CardSpeeds {
    pub fn of(rates: CardRates) -> CardSpeeds {
        let usable = |rate: Option<f64>| rate.filter(|r| is_usable_rate(*r));
        CardSpeeds {
            memory_gbs: usable(rates.memory_gbs),
            bus_gbs: usable(rates.bus_gbs),
            bus_median_gbs: usable(rates.bus_median_gbs),
            compute_tflops: usable(rates.compute_tflops),
        }
    }

    pub fn rates(self) -> CardRates {
        let CardSpeeds { memory_gbs, bus_gbs, bus_median_gbs, compute_tflops } = self;
        CardRates { memory_gbs, bus_gbs, bus_median_gbs, compute_tflops }
    }

    fn best(self, other: CardSpeeds) -> CardSpeeds {
        let best = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        CardSpeeds {
            memory_gbs: best(self.memory_gbs, other.memory_gbs),
            bus_gbs: best(self.bus_gbs, other.bus_gbs),
            bus_median_gbs: best(self.bus_median_gbs, other.bus_median_gbs),
            compute_tflops: best(self.compute_tflops, other.compute_tflops),
        }
    }
}

/// What was measured on this PC so far.
#[derive(Debug)]
pub struct Measurements {
    /// `None` keeps nothing.
    file: Option<PathBuf>,
    content: Content,
    changed: bool,
}

impl Measurements {
    /// Reads what is in the folder. A file that cannot be read or understood is as good as none: everything is measured anew.
    pub fn read(folder: Option<&Path>) -> Measurements {
        let file = folder.map(|folder| folder.join(FILE));
        let text = file.as_deref().and_then(|file| fs::read_to_string(file).ok());
        let content = text.and_then(|text| toml::from_str::<Content>(&text).ok()).filter(|content| content.version == VERSION);
        let content = content.unwrap_or_else(|| Content { version: VERSION, ..Content::default() });
        Measurements { file, content, changed: false }
    }

    pub fn host(&self, of: &str) -> Option<HostSpeeds> {
        find(&self.content.hosts, of)
    }

    pub fn disk(&self, of: &str) -> Option<DiskSpeeds> {
        find(&self.content.disks, of)
    }

    pub fn card(&self, of: &str) -> Option<CardSpeeds> {
        find(&self.content.cards, of)
    }

    pub fn format(&self, host: &str, format: Format) -> Option<f64> {
        find(&self.content.formats, &format_key(host, format)).map(|speed| speed.gbs)
    }

    /// Every disk that was ever measured.
    pub fn disks(&self) -> &[Entry<DiskSpeeds>] {
        &self.content.disks
    }

    /// Keeps a measurement; returns the best so far.
    pub fn keep_host(&mut self, of: &str, speeds: HostSpeeds) -> HostSpeeds {
        self.changed = true;
        keep(&mut self.content.hosts, of, speeds, HostSpeeds::best)
    }

    pub fn keep_format(&mut self, host: &str, format: Format, gbs: f64) -> f64 {
        self.changed = true;
        let best = |a: FormatSpeed, b: FormatSpeed| FormatSpeed { gbs: a.gbs.max(b.gbs) };
        keep(&mut self.content.formats, &format_key(host, format), FormatSpeed { gbs }, best).gbs
    }

    pub fn keep_disk(&mut self, of: &str, speeds: DiskSpeeds) -> DiskSpeeds {
        self.changed = true;
        keep(&mut self.content.disks, of, speeds, DiskSpeeds::best)
    }

    pub fn keep_card(&mut self, of: &str, speeds: CardSpeeds) -> CardSpeeds {
        self.changed = true;
        keep(&mut self.content.cards, of, speeds, CardSpeeds::best)
    }

    /// Writes what is new. The error is one sentence for the user: everything works without the file, but measures again.
    pub fn write(&self) -> Result<(), String> {
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else { return Ok(()) };
        let failed = |problem: String| {
            format!("measurements cannot be kept in '{}' ({problem}); they are made anew each time", file.display())
        };
        let text = toml::to_string(&self.content).map_err(|e| failed(e.to_string()))?;
        let write = || {
            if let Some(folder) = file.parent() {
                fs::create_dir_all(folder)?;
            }
            // Another process may read or write at the same time: the file is whole at every moment.
            write_whole(file, text.as_bytes())
        };
        write().map_err(|e: std::io::Error| failed(e.to_string()))
    }
}

fn format_key(host: &str, format: Format) -> String {
    format!("{}, {host}", format.name())
}

fn find<T: Copy>(entries: &[Entry<T>], of: &str) -> Option<T> {
    entries.iter().find(|entry| entry.of == of).map(|entry| entry.speeds)
}

fn keep<T: Copy>(entries: &mut Vec<Entry<T>>, of: &str, speeds: T, best: fn(T, T) -> T) -> T {
    match entries.iter_mut().find(|entry| entry.of == of) {
        Some(entry) => {
            entry.speeds = best(entry.speeds, speeds);
            entry.speeds
        }
        None => {
            entries.push(Entry { of: of.to_owned(), speeds });
            speeds
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds(ram_read_gbs: f64) -> HostSpeeds {
        HostSpeeds { ram_read_gbs, cpu_weights_gbs: 1.0, cpu_gmacs: 1.0, workers: 2 }
    }

    #[test]
    fn the_best_measurement_is_kept_for_the_next_run() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("made/on/demand");
        let mut first = Measurements::read(Some(&folder));
        assert_eq!(first.host("a PC"), None);
        first.keep_host("a PC", speeds(30.0));
        assert_eq!(first.keep_host("a PC", speeds(20.0)).ram_read_gbs, 30.0);
        first.keep_card("GPU-1", CardSpeeds { bus_gbs: Some(12.0), ..CardSpeeds::default() });
        first.keep_format("a PC", Format::Q4_K, 20.0);
        assert_eq!(first.keep_format("a PC", Format::Q4_K, 10.0), 20.0);
        first.write().unwrap();
        let second = Measurements::read(Some(&folder));
        assert_eq!(second.host("a PC"), Some(speeds(30.0)));
        assert_eq!(second.host("another PC"), None);
        assert_eq!(second.card("GPU-1").and_then(|card| card.bus_gbs), Some(12.0));
        assert_eq!(second.format("a PC", Format::Q4_K), Some(20.0));
        assert_eq!((second.format("a PC", Format::Q6_K), second.format("another PC", Format::Q4_K)), (None, None));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_not_understood_is_measured_anew() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "version = 99\n", "\u{0}\u{1}", "version = 1\nhost = 7\n"] {
            fs::write(folder.path().join(FILE), text).unwrap();
            assert_eq!(Measurements::read(Some(folder.path())).host("a PC"), None, "{text:?}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut kept = Measurements::read(Some(file.path()));
        assert_eq!(kept.write(), Ok(()), "nothing is new");
        kept.keep_host("a PC", speeds(1.0));
        let told = kept.write().unwrap_err();
        assert!(told.contains(&file.path().display().to_string()) && told.contains("made anew"), "{told}");
        Measurements::read(None).write().unwrap();
    }
}
