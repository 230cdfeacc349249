//! Predicts hit rates and speed from a trace, for any number of slots and any policy. It decides with the code that the engine
//! decides with, so that hit rates are exact.

use super::residency::{CardSlots, LayerResidency, exchange, refill};
use super::{DecodeTimes, Home, Line, Loan, Policy, Popularity, Profile, Rates, Swap, Trace, TraceRecord, split};
use super::{ExpertError, TraceLayer};

/// What to try.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// Slots of each layer on the card, and in RAM; `None`: those of the trace.
    pub card_slots: Option<u32>,
    pub ram_slots: Option<u32>,
    pub policy: Policy,
    pub rates: Rates,
    /// Seconds of a decode window beside its host steps, and those of its host steps.
    pub dense_s: f64,
    pub decode: DecodeTimes,
    pub profile: Option<Profile>,
}

impl Replay {
    /// As the trace was recorded.
    pub fn of(trace: &Trace) -> Replay {
        let header = &trace.header;
        Replay {
            card_slots: None,
            ram_slots: None,
            policy: header.policy,
            rates: header.rates,
            dense_s: header.dense_s,
            decode: header.decode,
            profile: None,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Prediction {
    pub tokens: u64,
    pub card_calls: u64,
    pub ram_calls: u64,
    pub disk_calls: u64,
    pub swaps: u64,
    /// Slots that were filled again after prompts had borrowed them.
    pub refills: u64,
    /// One-token windows, and the seconds they are predicted to take. Reading from disk is not in it.
    pub decode_tokens: u64,
    pub decode_s: f64,
}

impl Prediction {
    pub fn calls(&self) -> u64 {
        self.card_calls + self.ram_calls + self.disk_calls
    }

    pub fn card_hit_rate(&self) -> f64 {
        self.card_calls as f64 / self.calls().max(1) as f64
    }

    pub fn decode_rate(&self) -> Option<f64> {
        (self.decode_s > 0.0).then(|| self.decode_tokens as f64 / self.decode_s)
    }
}

/// # Errors
/// A profile of another model.
pub fn replay(trace: &Trace, wishes: &Replay) -> Result<Prediction, ExpertError> {
    let layers = &trace.header.layers;
    let mut residency = layers.iter().map(|l| start(l, wishes)).collect::<Result<Vec<_>, _>>()?;
    let no_loan = Loan::default();
    let loan_of = |stage: u32| trace.header.loans.get(stage as usize).unwrap_or(&no_loan);
    let mut prediction = Prediction::default();
    let mut found = vec![];
    let mut window_s = 0.0;
    for record in &trace.records {
        match record {
            TraceRecord::Choices { layer, rows, ids } => {
                let i = *layer as usize;
                let loan = loan_of(layers[i].stage);
                if let Some(program) = loan.program_for(*rows) {
                    residency[i].lend(loan, program, *rows, &layers[i].lent);
                }
                let ids: Vec<u32> = ids.iter().map(|id| u32::from(*id)).collect();
                window_s += choices(&layers[i], &mut residency[i], &ids, *rows as usize, wishes, &mut prediction);
            }
            TraceRecord::Window { stage, rows } => {
                let range = of_stage(layers, *stage);
                let mut apply = |_: usize, layer: &mut LayerResidency, swap: &Swap| -> Result<(), ExpertError> {
                    layer.apply(swap);
                    Ok(())
                };
                let loan = loan_of(*stage);
                let mut filled = 0;
                if !loan.program_for(*rows).is_some_and(|program| loan.borrows(program)) {
                    residency[range.clone()].iter_mut().for_each(LayerResidency::end_loan);
                    filled = refill(&mut residency[range.clone()], &wishes.policy, &mut found, &mut apply)?;
                }
                let made = exchange(&mut residency[range], &wishes.policy, *rows as usize, &mut found, &mut apply)?;
                prediction.swaps += made as u64;
                prediction.refills += filled as u64;
                window_s += wishes.decode.moves.seconds((made + filled) as f64);
                let last = layers.last().map_or(0, |l| l.stage);
                if *stage == 0 {
                    prediction.tokens += u64::from(*rows);
                }
                if *stage == last {
                    if *rows == 1 {
                        prediction.decode_tokens += 1;
                        prediction.decode_s += wishes.dense_s + window_s;
                    }
                    window_s = 0.0;
                }
            }
        }
    }
    Ok(prediction)
}

fn start(layer: &TraceLayer, wishes: &Replay) -> Result<LayerResidency, ExpertError> {
    let popularity = match &wishes.profile {
        Some(profile) => profile.popularity(layer.layer, layer.experts)?,
        None => Popularity::new(layer.experts),
    };
    let card = wishes.card_slots.unwrap_or(layer.card_slots).min(layer.experts);
    // A trace of a card that held everything needed no RAM; what another card misses is then taken to be there.
    let recorded = if layer.ram_slots == 0 { layer.experts } else { layer.ram_slots };
    let ram = wishes.ram_slots.unwrap_or(recorded).clamp(1, layer.experts);
    let lent = layer.lent.count.min(card);
    Ok(LayerResidency::new(popularity, CardSlots { total: card, ring: 0, lent }, ram))
}

fn of_stage(layers: &[TraceLayer], stage: u32) -> std::ops::Range<usize> {
    let start = layers.partition_point(|l| l.stage < stage);
    start..layers.partition_point(|l| l.stage <= stage)
}

/// A host step; the seconds that it is predicted to add to the window.
fn choices(
    layer: &TraceLayer,
    residency: &mut LayerResidency,
    ids: &[u32],
    rows: usize,
    wishes: &Replay,
    prediction: &mut Prediction,
) -> f64 {
    residency.popularity.observe(ids, rows);
    let mut rows_of = vec![0u32; layer.experts as usize];
    for id in ids {
        rows_of[*id as usize] += 1;
        *match residency.home(*id) {
            Home::Card => &mut prediction.card_calls,
            Home::Ram => &mut prediction.ram_calls,
            Home::Disk => &mut prediction.disk_calls,
        } += 1;
    }
    let used = || (0..layer.experts).filter(|e| rows_of[*e as usize] > 0);
    let held = used().filter(|e| residency.card.holds(*e)).count();
    let elsewhere = used().filter(|e| !residency.card.holds(*e));
    let mut missed: Vec<(u32, u32)> = elsewhere.map(|e| (e, rows_of[e as usize])).collect();
    let to_card = split(&mut missed, layer.slab_bytes, &wishes.rates);
    admit(residency, &missed);
    let (rates, times) = (&wishes.rates, &wishes.decode);
    let bytes = |experts: usize| experts as f64 * layer.slab_bytes as f64;
    let bus_s = if to_card == 0 { 0.0 } else { to_card as f64 * rates.bus_s(layer.slab_bytes) };
    let processor_s = match &missed[to_card..] {
        [] => 0.0,
        // A trace without measured steps.
        of_processor if times.processor == Line::default() => {
            of_processor.iter().map(|(_, rows)| rates.processor_s(layer.slab_bytes, *rows)).sum()
        }
        of_processor => times.processor.seconds(bytes(of_processor.len())),
    };
    let card_s = times.card.seconds(bytes(held));
    rates.together_s(card_s + bus_s, processor_s)
}

/// The experts that come from disk take their slots of RAM, as many at a time as there are.
fn admit(residency: &mut LayerResidency, missed: &[(u32, u32)]) {
    let from_disk: Vec<u32> = missed.iter().map(|(e, _)| *e).filter(|e| !residency.ram.holds(*e)).collect();
    for chunk in from_disk.chunks(residency.ram.len().max(1)) {
        let mut fillings = vec![];
        for expert in chunk {
            if let Some(admission) = residency.admission() {
                fillings.push(residency.ram.begin(admission.slot, *expert));
            }
        }
        for filling in fillings {
            residency.ram.publish(filling);
        }
    }
}
