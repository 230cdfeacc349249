//! Random models, machines and wishes, from a seed.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use strata::plan::{
    BackendKind, Card, ConvFacts, DenseFacts, Disk, DraftFacts, DriverKind, ExpertFacts, FormatBytes, HeldCards, Host,
    IndexFacts, KvType, LayerFacts, LayerRange, LayerWork, Limits, MACHINE_VERSION, Machine, Mixer, NgramFacts, Os, PlanModel,
    RamExperts, Size, TableFacts, VisionFacts, WorkBuffer, WorkForms,
};
use strata::quant::Format;

pub struct Random(ChaCha8Rng);

/// Different forms of layers in a model.
const FORMS: usize = 3;

fn buffer(floats: u32, (first_step, last_step): (u32, u32), carried: bool) -> WorkBuffer {
    WorkBuffer { row_bytes: 4 * u64::from(floats), per_output: false, carried, first_step, last_step }
}

const MIB: u64 = 1 << 20;

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(ChaCha8Rng::seed_from_u64(seed))
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.next_u64() % (high - low + 1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }

    pub fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.between(0, items.len() as u64 - 1) as usize]
    }

    fn rate(&mut self, low: u64, high: u64) -> Option<f64> {
        self.chance(80).then(|| self.between(low * 10, high * 10) as f64 / 10.0)
    }

    pub fn model(&mut self) -> PlanModel {
        let count = self.between(1, 10);
        let experts = self.chance(75).then(|| (self.between(2, 64) as u32, self.between(1, 8) as u32));
        let hybrid = self.chance(50);
        let ngram_layer = self.chance(30).then(|| self.between(0, count - 1) as u32);
        let (width, streams) = (self.of(&[256u32, 512, 2560]), self.of(&[1u32, 1, 4]));
        let vocab = self.between(100, 250_000) as u32;
        let mut layers: Vec<LayerFacts> =
            (0..count as u32).map(|l| self.layer(experts, hybrid, ngram_layer == Some(l), width * streams)).collect();
        let mut work: Vec<LayerWork> = (0..FORMS).map(|_| self.work(experts, width, streams)).collect();
        work.push(self.last_work(&work[0].clone(), vocab));
        layers[count as usize - 1].work = WorkForms { usual: FORMS, short: FORMS };
        let head = self.dense(64);
        let draft = self.chance(30).then(|| {
            let block = self.layer(experts, false, false, width * streams);
            DraftFacts { block, head_bytes: 256 * self.between(0, 1000) }
        });
        let vision = self.chance(30).then(|| {
            let (weights, n) = (self.dense(200), self.between(1, 100_000));
            VisionFacts {
                weights,
                places_bytes: 256 * (1 + n % 1000),
                width: 4 * (1 + n % 400) as u32,
                inner: 1 + (n % 5000) as u32,
                patch_floats: 3 * (1 + n % 400),
                joined: [1, 4][n as usize % 2],
            }
        });
        PlanModel {
            name: "random".into(),
            arch: "qwen4exp".into(),
            width,
            streams,
            vocab,
            trained_context: 131_072,
            layers,
            head_formats: FormatBytes(vec![(Format::Q6_K, head.bytes)]),
            head,
            tied_head: self.chance(20),
            work,
            wants_all_rows: false,
            embedding: TableFacts { row_bytes: 1000, rows: self.between(100, 250_000) },
            ngram: ngram_layer.map(|layer| NgramFacts {
                layer,
                table: TableFacts { row_bytes: 90, rows: 1_000_000 },
                rows_per_token: 16,
                floats_per_token: width,
            }),
            draft,
            vision,
            file_bytes: 1 << 33,
        }
    }

    fn dense(&mut self, most_mib: u64) -> DenseFacts {
        let bytes = 256 * self.between(1, most_mib * 4096);
        DenseFacts { bytes, largest_bytes: bytes / self.between(1, 8), params: bytes }
    }

    fn layer(&mut self, experts: Option<(u32, u32)>, hybrid: bool, ngram: bool, floats: u32) -> LayerFacts {
        let mixer = if hybrid && self.chance(60) {
            let conv = ConvFacts { rows: 3, channels: self.of(&[256, 10_240]) };
            Mixer::Delta { value_heads: self.of(&[2, 48]), key_dim: self.of(&[32, 128]), value_dim: 64, conv }
        } else {
            let index = self.chance(50).then(|| IndexFacts {
                dim: self.of(&[32, 128]),
                ratio: self.of(&[2, 4]),
                budget: 2048,
                weights_bytes: 256 * self.between(0, 4000),
            });
            Mixer::Attention { q_heads: 8, kv_heads: self.of(&[1, 2, 8]), head_dim: self.of(&[64, 80, 128, 256]), index }
        };
        let experts = experts.map(|(count, used)| ExpertFacts {
            count,
            used: used.min(count),
            slab_bytes: 256 * self.between(1, 70_000),
            params: self.between(1000, 5_000_000),
            formats: "IQ3_S/IQ3_S/IQ4_NL".into(),
            by_format: FormatBytes(vec![(Format::IQ3_S, 2000), (Format::IQ4_NL, 1200)]),
        });
        let ngram_conv = ngram.then_some(ConvFacts { rows: 9, channels: floats });
        let form = self.between(0, FORMS as u64 - 1) as usize;
        let work = WorkForms { usual: form, short: form };
        let mut dense = self.dense(40);
        if let Mixer::Attention { index: Some(i), .. } = &mixer {
            dense.bytes += i.weights_bytes;
        }
        let dense_formats = FormatBytes(vec![(self.of(&[Format::Q4_K, Format::Q8_0, Format::IQ3_S]), dense.bytes)]);
        LayerFacts { dense, dense_formats, experts, mixer, ngram_conv, work }
    }

    /// The residual, and a few buffers of a layer one after the other; with a table of experts also their results.
    fn work(&mut self, experts: Option<(u32, u32)>, width: u32, streams: u32) -> LayerWork {
        let last = self.between(2, 8) as u32;
        let mut whole = vec![buffer(width * streams, (0, last), true)];
        for _ in 0..self.between(1, 5) {
            let first_step = self.between(0, last.into()) as u32;
            let last_step = self.between(first_step.into(), last.into()) as u32;
            whole.push(buffer(self.of(&[1, 64, 100, 2048, 10_240]), (first_step, last_step), false));
        }
        let mut partial = whole.clone();
        partial.extend(experts.map(|(_, used)| buffer(used * width, (last / 2, last), false)));
        LayerWork { whole, partial, product_floats: self.of(&[256, 10_240]) }
    }

    /// A last layer: behind it the scores of the rows that are wanted.
    fn last_work(&mut self, layer: &LayerWork, vocab: u32) -> LayerWork {
        let behind = |buffers: &[WorkBuffer]| {
            let end = buffers.iter().map(|b| b.last_step).max().unwrap_or(0) + 1;
            let scores = WorkBuffer { per_output: true, ..buffer(vocab, (end, end), false) };
            buffers.iter().copied().chain([scores]).collect()
        };
        LayerWork { whole: behind(&layer.whole), partial: behind(&layer.partial), ..*layer }
    }

    pub fn card(&mut self, i: usize, os: Os) -> Card {
        let choices = [BackendKind::Cuda, BackendKind::Hip, BackendKind::Vulkan, BackendKind::Virtual];
        let backend = self.of(&choices);
        let driver = match (backend, os) {
            (BackendKind::Virtual, _) => DriverKind::None,
            (_, Os::Windows) if self.chance(20) => DriverKind::Tcc,
            (_, Os::Windows | Os::Wsl) => DriverKind::Wddm,
            _ => DriverKind::Linux,
        };
        let total = self.between(300, 3000) * MIB;
        let card = Card {
            id: format!("card:{i}"),
            name: format!("card {i}"),
            backend,
            driver,
            uuid: None,
            pci: None,
            total: Size(total),
            free: Size(total - self.between(0, 200) * MIB),
            opened: self.chance(30),
            drives_display: self.chance(30),
            by_name_only: None,
            shares_host_memory: self.chance(15),
            memory_gbs: self.rate(50, 1000),
            bus_gbs: self.rate(1, 60),
            bus_median_gbs: None,
            compute_tflops: self.rate(1, 200),
            max_buffer: self.chance(20).then(|| Size(self.between(128, 4096) * MIB)),
            max_binding: self.chance(10).then(|| Size(self.between(64, 2048) * MIB)),
            alignment: None,
            context_bytes: self.chance(60).then(|| Size(self.between(0, 100) * MIB)),
            module_bytes: self.chance(60).then(|| Size(self.between(0, 50) * MIB)),
            library_bytes: self.chance(60).then(|| Size(self.between(0, 50) * MIB)),
            graph_bytes: self.chance(60).then(|| Size(self.between(0, 50) * MIB)),
        };
        Card { pci: self.chance(50).then(|| format!("0000:0{i}:00.0")), ..card }
    }

    /// Of some formats, those of the models among them.
    fn format_rates(&mut self) -> BTreeMap<String, f64> {
        let formats = [Format::Q4_K, Format::IQ3_S, Format::IQ4_NL, Format::Q2_K];
        let rates = formats.map(|format| (Host::format_key(format), self.rate(2, 60).filter(|_| self.chance(30))));
        rates.into_iter().filter_map(|(key, rate)| Some((key, rate?))).collect()
    }

    pub fn machine(&mut self) -> Machine {
        let os = self.of(&[Os::Linux, Os::Linux, Os::Windows, Os::Wsl]);
        let ram = self.between(1500, 16_000) * MIB;
        let windows = os == Os::Windows && self.chance(80);
        let container = (os == Os::Linux && self.chance(20)).then(|| self.between(1024, 40_000) * MIB);
        let host = Host {
            os,
            ram_total: Size(ram + 1024 * MIB),
            ram_available: Size(ram),
            container_limit: container.map(Size),
            container_used: container.map(|c| Size(c / 20)),
            pinned_limit: self.chance(20).then(|| Size(self.between(256, 20_000) * MIB)),
            memlock_limit: None,
            commit_limit: windows.then(|| Size(ram + self.between(1024, 60_000) * MIB)),
            commit_used: windows.then_some(Size(1024 * MIB)),
            page_file: windows.then(|| Size(self.between(0, 60_000) * MIB)),
            workers: None,
            cores: self.between(1, 64) as u32,
            simd: None,
            ram_read_gbs: self.rate(10, 200),
            cpu_weights_gbs: self.rate(5, 100),
            cpu_gmacs: self.rate(20, 800),
            cpu_format_gbs: self.format_rates(),
        };
        let mut cards: Vec<Card> = (0..self.between(0, 3) as usize).map(|i| self.card(i, os)).collect();
        if cards.len() > 1 && self.chance(25) {
            cards[1] = Card { id: "card:1".into(), pci: None, ..cards[0].clone() };
        }
        if cards.is_empty() || self.chance(10) {
            cards.push(Card {
                backend: BackendKind::Cpu,
                driver: DriverKind::None,
                total: Size(ram),
                free: Size(ram),
                ..self.card(9, os)
            });
        }
        let disks = vec![Disk {
            name: "disk".into(),
            kind: None,
            read_gbs: self.rate(1, 10),
            random_reads_per_s: self.rate(100, 100_000),
        }];
        Machine { version: MACHINE_VERSION, name: "random".into(), host, cards, disks }
    }

    pub fn limits(&mut self, model: &PlanModel, machine: &Machine) -> Limits {
        let mut limits = Limits {
            context: self.chance(90).then(|| self.between(1, 40_000) as u32),
            kv: self.of(&KvType::ALL),
            prefill: self.chance(70).then(|| self.of(&[64, 256, 1000, 2048])),
            slots: self.of(&[1, 1, 1, 2, 5]),
            draft: model.draft.is_some() && self.chance(60),
            draft_window: self.between(1, 6) as u32,
            vision: model.vision.is_some() && self.chance(60),
            vision_tokens: [8, 1024, 4096][model.layers.len() % 3],
            reserve: self.chance(20).then(|| self.between(0, 1500) * MIB),
            expert_slots: self.chance(15).then(|| self.between(0, 400) as u32),
            resident_kv: self.chance(20).then(|| self.between(1, 20_000) as u32),
            checkpoints: self.of(&[0, 0, 3]),
            cache_ram: self.of(&[0, 0, 3 << 30]),
            ram_budget: self.chance(10).then(|| self.between(500, 30_000) * MIB),
            ram_experts: self.of(&[
                RamExperts::Auto,
                RamExperts::Auto,
                RamExperts::All,
                RamExperts::Complement,
                RamExperts::Disk,
            ]),
            held_cards: HeldCards::Use,
            ..Limits::default()
        };
        let gpus = machine.cards.iter().filter(|c| c.backend != BackendKind::Cpu).count() as u64;
        let layers = model.layers.len() as u64;
        if gpus > 0 && self.chance(10) {
            let stages = self.between(1, gpus.min(layers));
            limits.layer_split = Some(self.split(layers as u32, stages as u32));
        } else if gpus > 0 && self.chance(10) {
            limits.devices = Some(machine.cards.iter().filter(|c| c.backend != BackendKind::Cpu).map(|c| c.id.clone()).collect());
        }
        limits
    }

    fn split(&mut self, layers: u32, stages: u32) -> Vec<LayerRange> {
        let mut start = 0;
        (0..stages)
            .map(|i| {
                let left = stages - i - 1;
                let end = if left == 0 { layers } else { self.between(u64::from(start) + 1, u64::from(layers - left)) as u32 };
                let range = LayerRange { start, end };
                start = end;
                range
            })
            .collect()
    }
}
