//! What the router chose, window by window, kept in a file: a line of JSON, then little-endian words.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{DecodeTimes, ExpertError, LentSlots, Loan, Policy, Rates};

/// A layer as a replay needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceLayer {
    pub layer: u32,
    pub stage: u32,
    pub experts: u32,
    pub used: u32,
    pub slab_bytes: u64,
    /// Without the slots of a ring.
    pub card_slots: u32,
    /// Of these, the last ones that prompts borrow.
    #[serde(default)]
    pub lent: LentSlots,
    pub ram_slots: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceHeader {
    pub policy: Policy,
    pub rates: Rates,
    /// Seconds of a decode window beside its host steps; 0 if it was not measured.
    pub dense_s: f64,
    /// What its host steps took.
    #[serde(default)]
    pub decode: DecodeTimes,
    pub layers: Vec<TraceLayer>,
    /// What the programs of each stage borrow.
    #[serde(default)]
    pub loans: Vec<Loan>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceRecord {
    /// A window of `rows` tokens at a layer (an index into the header's list) chose `ids`, row by row.
    Choices { layer: u32, rows: u32, ids: Vec<u16> },
    /// A window is complete on a stage.
    Window { stage: u32, rows: u32 },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    pub header: TraceHeader,
    pub records: Vec<TraceRecord>,
}

/// Marks the records of complete windows.
const WINDOW: u32 = u32::MAX;
/// A record larger than any window is damage.
const MOST_IDS: u32 = 1 << 24;
/// Numbers of experts are two bytes.
const MOST_EXPERTS: u32 = 1 << 16;
/// Experts of all layers together, for each of which a replay takes memory: many times those of any model.
const MOST_EXPERTS_OF_ALL: u64 = 1 << 22;
/// An expert larger than any machine is damage.
const MOST_SLAB_BYTES: u64 = 1 << 40;

impl TraceHeader {
    /// What a replay relies on. A file may say anything.
    fn check(&self) -> Result<(), String> {
        for TraceLayer { layer, experts, used, slab_bytes, card_slots, lent, .. } in &self.layers {
            if *experts > MOST_EXPERTS {
                return Err(format!("layer {layer} has {experts} experts, more than {MOST_EXPERTS}"));
            }
            if *used == 0 || used > experts {
                return Err(format!("layer {layer} uses {used} of {experts} experts"));
            }
            if lent.count > *card_slots || *card_slots > *experts {
                return Err(format!("layer {layer} has {card_slots} slots for {experts} experts and lends {}", lent.count));
            }
            if *slab_bytes > MOST_SLAB_BYTES {
                return Err(format!("layer {layer} has experts of {slab_bytes} bytes"));
            }
        }
        if self.layers.iter().map(|l| u64::from(l.experts)).sum::<u64>() > MOST_EXPERTS_OF_ALL {
            return Err(format!("its layers have more than {MOST_EXPERTS_OF_ALL} experts"));
        }
        if !self.layers.is_sorted_by_key(|l| l.stage) {
            return Err("its layers are not in the order of the stages".into());
        }
        Ok(())
    }
}

/// Collects records.
#[derive(Debug)]
pub struct TraceWriter {
    layers: usize,
    records: Vec<TraceRecord>,
}

impl TraceWriter {
    pub fn new(layers: usize) -> TraceWriter {
        TraceWriter { layers, records: vec![] }
    }

    pub fn choices(&mut self, layer: u32, rows: u32, ids: &[u32]) {
        debug_assert!((layer as usize) < self.layers);
        self.records.push(TraceRecord::Choices { layer, rows, ids: ids.iter().map(|id| *id as u16).collect() });
    }

    pub fn window(&mut self, stage: u32, rows: u32) {
        self.records.push(TraceRecord::Window { stage, rows });
    }

    pub fn take(&mut self, header: TraceHeader) -> Trace {
        Trace { header, records: std::mem::take(&mut self.records) }
    }
}

impl Trace {
    /// Complete windows of the whole model.
    pub fn windows(&self) -> usize {
        self.records.iter().filter(|r| matches!(r, TraceRecord::Window { stage: 0, .. })).count()
    }

    /// # Errors
    /// What the writer says.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        serde_json::to_writer(&mut *out, &self.header)?;
        out.write_all(b"\n")?;
        for record in &self.records {
            match record {
                TraceRecord::Window { stage, rows } => {
                    for word in [WINDOW, *stage, *rows] {
                        out.write_all(&word.to_le_bytes())?;
                    }
                }
                TraceRecord::Choices { layer, rows, ids } => {
                    for word in [*layer, *rows, ids.len() as u32] {
                        out.write_all(&word.to_le_bytes())?;
                    }
                    for id in ids {
                        out.write_all(&id.to_le_bytes())?;
                    }
                }
            }
        }
        out.flush()
    }

    /// # Errors
    /// A file that cannot be read, or is damaged.
    pub fn load(path: &Path) -> Result<Trace, ExpertError> {
        let file = || path.display().to_string();
        let failed = |source| ExpertError::Io { file: file(), action: "read", source };
        let bad = |reason: String| ExpertError::Trace { file: file(), reason };
        let mut input = BufReader::new(std::fs::File::open(path).map_err(failed)?);
        let mut line = vec![];
        input.by_ref().take(1 << 24).read_until(b'\n', &mut line).map_err(failed)?;
        if !line.ends_with(b"\n") {
            return Err(bad("it is cut short".into()));
        }
        let header: TraceHeader = serde_json::from_slice(&line).map_err(|e| bad(e.to_string()))?;
        header.check().map_err(bad)?;
        let mut records = vec![];
        let mut words = [0; 12];
        while !input.fill_buf().map_err(failed)?.is_empty() {
            input.read_exact(&mut words).map_err(|_| bad("it is cut short".into()))?;
            let word = |i: usize| u32::from_le_bytes([words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]]);
            let (first, second, third) = (word(0), word(1), word(2));
            if first == WINDOW {
                records.push(TraceRecord::Window { stage: second, rows: third });
                continue;
            }
            let Some(layer) = header.layers.get(first as usize) else { return Err(bad(format!("there is no layer {first}"))) };
            if third > MOST_IDS || u64::from(third) != u64::from(second) * u64::from(layer.used) {
                return Err(bad(format!("{third} choices of {second} rows")));
            }
            let mut bytes = vec![0; third as usize * 2];
            input.read_exact(&mut bytes).map_err(|_| bad("it is cut short".into()))?;
            let ids: Vec<u16> = bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
            if let Some(id) = ids.iter().find(|id| u32::from(**id) >= layer.experts) {
                return Err(bad(format!("expert {id} of {}", layer.experts)));
            }
            records.push(TraceRecord::Choices { layer: first, rows: second, ids });
        }
        Ok(Trace { header, records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let layer = TraceLayer {
            layer: 4,
            stage: 0,
            experts: 8,
            used: 2,
            slab_bytes: 512,
            card_slots: 3,
            ram_slots: 8,
            lent: LentSlots::default(),
        };
        let rates = Rates { processor_bytes_s: 1e9, processor_row_s: 1e-6, bus_bytes_s: 0.0, overlaps: false };
        let mut writer = TraceWriter::new(1);
        writer.choices(0, 2, &[7, 0, 3, 1]);
        writer.window(0, 2);
        writer.take(TraceHeader {
            policy: Policy::default(),
            rates,
            dense_s: 0.0,
            decode: DecodeTimes::default(),
            layers: vec![layer],
            loans: vec![],
        })
    }

    #[test]
    fn a_trace_survives_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let t = trace();
        t.write(&mut file.as_file()).unwrap();
        assert_eq!(Trace::load(file.path()).unwrap(), t);
    }

    #[test]
    fn damage_is_told_and_never_a_panic() {
        let file = tempfile::NamedTempFile::new().unwrap();
        trace().write(&mut file.as_file()).unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        let start = whole.iter().position(|b| *b == b'\n').unwrap() + 1;
        for cut in [0, 5, start - 1, start + 3, start + 13, whole.len() - 1] {
            std::fs::write(file.path(), &whole[..cut]).unwrap();
            assert!(Trace::load(file.path()).is_err(), "cut at {cut}");
        }
        for (at, value) in [(start, 9), (start + 4, 200), (start + 12, 8)] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            std::fs::write(file.path(), &bytes).unwrap();
            assert!(matches!(Trace::load(file.path()), Err(ExpertError::Trace { .. })), "byte {at}");
        }
    }

    #[test]
    fn layers_that_no_model_has_are_refused() {
        let refused = |layers: &[TraceLayer]| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let t = trace();
            let header = TraceHeader { layers: layers.to_vec(), ..t.header };
            Trace { header, ..t }.write(&mut file.as_file()).unwrap();
            match Trace::load(file.path()) {
                Err(ExpertError::Trace { reason, .. }) => reason,
                other => panic!("{other:?}"),
            }
        };
        let sound = trace().header.layers.remove(0);
        let with = |experts, used| TraceLayer { experts, used, ..sound.clone() };
        for (experts, used) in [(65_537, 2), (u32::MAX, 2), (8, 0), (8, 9), (0, 0), (0, 2)] {
            let reason = refused(&[with(experts, used)]);
            assert!(reason.contains("layer 4") && reason.contains("experts"), "{reason}");
        }
        let lends = LentSlots { count: 4, ..LentSlots::default() };
        assert!(refused(&[TraceLayer { lent: lends, ..sound.clone() }]).contains("lends 4"));
        assert!(refused(&[TraceLayer { slab_bytes: u64::MAX, ..sound.clone() }]).contains("bytes"));
        assert!(refused(&vec![with(65_536, 2); 65]).contains("more than 4194304"));
        let later = TraceLayer { stage: 1, ..sound.clone() };
        assert!(refused(&[later, sound.clone()]).contains("order"));
    }
}
