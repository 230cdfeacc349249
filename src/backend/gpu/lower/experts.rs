//! The router and the experts.

use super::super::args::{ExpertArgs, ExpertGroupArgs, ExpertSumArgs, NONE, RouterArgs};
use super::super::kernels::{Kernel, Operand};
use super::super::launch::{Extent, Region, Window};
use super::matmul::activation_code;
use super::{Call, Grouped, Lowering, Outcome, check_room, word};
use crate::program::{ARENA_ALIGN_BYTES, ExpertMatrix, Op, StateId, StateKind, View, WeightDecl, WeightId};

/// Whether two weights are parts of the same experts' slabs.
fn same_slab(a: &WeightDecl, b: &WeightDecl) -> bool {
    let near = a.offset_bytes.abs_diff(b.offset_bytes) < a.expert_stride_bytes;
    (a.experts, a.expert_stride_bytes) == (b.experts, b.expert_stride_bytes) && near
}

/// Tiles that the choices of a window can fall into, at most.
pub fn max_tiles(pairs: u64, experts: u32, tile: u32) -> u32 {
    (pairs / u64::from(tile.max(1)) + pairs.min(u64::from(experts))) as u32
}

/// Products of one matrix (or two) of each chosen expert.
struct Products<'a> {
    x: View,
    /// Input columns from one choice of a row to the next: 0 where all choices read the same.
    x_pair_stride: u32,
    ids: View,
    first: &'a ExpertMatrix,
    /// A second matrix in the same kernel.
    second: Option<&'a ExpertMatrix>,
    /// The second product, made before.
    up_at: u32,
    activation: u32,
    slots: Option<StateId>,
    to: To,
}

#[derive(Clone, Copy)]
enum To {
    Work(View),
    /// `[pair][output]`
    Scratch(u32),
}

/// Where the products of a row's choices lie.
#[derive(Clone, Copy)]
enum Summands {
    Work(View),
    Scratch { at: u32, stride: u32 },
}

impl Summands {
    fn in_work(&self) -> Option<View> {
        match self {
            Summands::Work(x) => Some(*x),
            Summands::Scratch { .. } => None,
        }
    }
}

/// Slots that one launch sees.
struct Pool {
    window: Window,
    first_slot: u32,
    slots: u32,
}

impl Lowering<'_> {
    pub(super) fn experts(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Router { logits, normalise, ids, weights, .. } => self.router(*logits, *normalise, *ids, *weights),
            Op::ExpertGated { x, ids, gate, up, activation, slots, out } => {
                let activation = activation_code(*activation);
                let (g, u) = (self.weight(gate.weight)?, self.weight(up.weight)?);
                let fused = g.format == u.format && same_slab(g, u);
                let mut products = Products {
                    x: *x,
                    x_pair_stride: 0,
                    ids: *ids,
                    first: gate,
                    second: fused.then_some(up),
                    up_at: NONE,
                    activation,
                    slots: *slots,
                    to: To::Work(*out),
                };
                if !fused {
                    let at = self.scratch(self.max_pairs(*ids) * u64::from(up.rows))?;
                    let before = Products { first: up, second: None, to: To::Scratch(at), ..products };
                    self.products(&before)?;
                    products.up_at = at;
                }
                self.products(&products)
            }
            Op::ExpertDown { x, ids, weights, down, out } => {
                let at = self.scratch(self.max_pairs(*ids) * u64::from(down.rows))?;
                self.down_products(*x, *ids, down, None, To::Scratch(at))?;
                let products = Summands::Scratch { at, stride: down.rows * ids.width };
                self.expert_sum(products, *ids, *weights, down.scale, *out)
            }
            Op::ExpertDownEach { x, ids, down, slots, out } => self.down_products(*x, *ids, down, Some(*slots), To::Work(*out)),
            Op::ExpertSum { x, ids, weights, scale, out } => self.expert_sum(Summands::Work(*x), *ids, *weights, *scale, *out),
            _ => Err("no kernel for the op".into()),
        }
    }

    /// Products of the down matrices, without their scale.
    fn down_products(&mut self, x: View, ids: View, down: &ExpertMatrix, slots: Option<StateId>, to: To) -> Outcome {
        let first = ExpertMatrix { scale: None, ..*down };
        let x_pair_stride = self.weight(down.weight)?.cols;
        let (second, up_at, activation) = (None, NONE, 0);
        self.products(&Products { x, x_pair_stride, ids, first: &first, second, up_at, activation, slots, to })
    }

    fn max_pairs(&self, ids: View) -> u64 {
        u64::from(self.max_rows(ids)) * u64::from(ids.width)
    }

    /// The table expert → slot, and the window it lies in.
    fn table(&self, slots: Option<StateId>, w: &WeightDecl) -> Outcome<(Option<Window>, u32)> {
        let Some(id) = slots else {
            let held = w.holds_all();
            return if held { Ok((None, NONE)) } else { Err(format!("{} of {} experts without a table", w.slots, w.experts)) };
        };
        let (_, window, at, _) = self.state(id)?;
        match self.stage.state(id).kind {
            StateKind::ExpertSlots { experts, .. } if experts == w.experts => Ok((Some(window), at)),
            _ => Err("the state is no table of the experts' slots".into()),
        }
    }

    fn router(&mut self, logits: View, normalise: bool, ids: View, weights: View) -> Outcome {
        check_room("experts of a layer", logits.width, self.target.room.experts)?;
        let work = self.work(&[logits, ids, weights])?;
        let (logits_at, logits_stride) = self.place(logits, &work)?;
        let (ids_at, ids_stride) = self.place(ids, &work)?;
        let (weights_at, weights_stride) = self.place(weights, &work)?;
        let grid = [Extent::Fixed(1), self.rows_extent(logits)?, Extent::Fixed(1)];
        let (experts, used, normalise) = (logits.width, ids.width, u32::from(normalise));
        let args =
            RouterArgs { logits_at, logits_stride, ids_at, ids_stride, weights_at, weights_stride, experts, used, normalise };
        self.push(Call::new(Kernel::Router, grid).work(&work), args);
        Ok(())
    }

    /// Sorts the choices of the window, unless the scratch holds them sorted.
    fn group(&mut self, ids: View, experts: u32) -> Outcome<Grouped> {
        if let Some(grouped) = self.grouped.filter(|g| g.ids == ids) {
            return Ok(grouped);
        }
        check_room("experts of a layer", experts, self.target.room.experts)?;
        let work = self.work(&[ids])?;
        let (ids_at, ids_stride) = self.place(ids, &work)?;
        let grouped = Grouped { ids, choices_at: self.choices_at, tiles_at: self.tiles_at };
        let Grouped { choices_at, tiles_at, .. } = grouped;
        let (used, tile) = (ids.width, self.target.tiles.matrix_rows);
        let call = Call::new(Kernel::ExpertGroup, [Extent::Fixed(1); 3]).work(&work);
        self.push(call, ExpertGroupArgs { ids_at, ids_stride, experts, used, choices_at, tiles_at, tile });
        self.grouped = Some(grouped);
        Ok(grouped)
    }

    fn products(&mut self, p: &Products<'_>) -> Outcome {
        let w = self.weight(p.first.weight)?;
        let quantised = self.quantise(p.x, w.format)?;
        let grouped = if self.few_rows(p.x) { None } else { Some(self.group(p.ids, w.experts)?) };
        let mut slot = 0;
        while slot < w.slots {
            let pool = self.pool(p, slot)?;
            slot += pool.slots;
            self.products_of(p, &pool, quantised, grouped)?;
        }
        Ok(())
    }

    /// The slabs from `first_slot` that one launch can see.
    fn pool(&self, p: &Products<'_>, first_slot: u32) -> Outcome<Pool> {
        let parts = [Some(p.first), p.second];
        let weights = parts.into_iter().flatten().map(|m| self.weight(m.weight)).collect::<Outcome<Vec<_>>>()?;
        let stride = weights[0].expert_stride_bytes;
        let aligned = weights.iter().all(|w| w.offset_bytes.is_multiple_of(ARENA_ALIGN_BYTES));
        if !aligned || !stride.is_multiple_of(ARENA_ALIGN_BYTES) {
            return Err(format!("the slabs of {} are not aligned", weights[0].tensor));
        }
        let start = weights.iter().map(|w| w.offset_bytes).min().unwrap_or(0) + u64::from(first_slot) * stride;
        let slab = weights.iter().map(|w| w.offset_bytes + w.matrix_bytes()).max().unwrap_or(0)
            - weights.iter().map(|w| w.offset_bytes).min().unwrap_or(0);
        let end = start.saturating_add(self.target.max_binding_bytes).min(self.visible_end(Region::Weights, start));
        let fit = (end - start).checked_sub(slab).map_or(0, |rest| rest / stride + 1);
        let slots = fit.min(u64::from(weights[0].slots - first_slot)) as u32;
        if slots == 0 {
            let name = &weights[0].tensor;
            return Err(format!("an expert of {name} ({slab} bytes) is larger than what a kernel of this device can see"));
        }
        let window = self.window(Region::Weights, start, start + u64::from(slots - 1) * stride + slab, &weights[0].tensor)?;
        Ok(Pool { window, first_slot, slots })
    }

    fn products_of(&mut self, p: &Products<'_>, pool: &Pool, quantised: (u32, u32), grouped: Option<Grouped>) -> Outcome {
        let w = self.weight(p.first.weight)?;
        let (state, table_at) = self.table(p.slots, w)?;
        let (w2, [scale_at, up_scale_at]) = self.vectors([p.first.scale, p.second.and_then(|m| m.scale)])?;
        let views = match p.to {
            To::Work(out) => vec![p.x, p.ids, out],
            To::Scratch(_) => vec![p.x, p.ids],
        };
        let work = self.work(&views)?;
        let (x_at, x_stride) = self.place(p.x, &work)?;
        let (ids_at, ids_stride) = self.place(p.ids, &work)?;
        let (outs, used) = (p.first.rows, p.ids.width);
        let ((out_at, out_stride), out_in_scratch) = match p.to {
            To::Work(out) => (self.place(out, &work)?, 0),
            To::Scratch(at) => ((at, outs * used), 1),
        };
        let units = |m: &ExpertMatrix| {
            let slot = u64::from(pool.first_slot) * w.expert_stride_bytes;
            word((self.weight(m.weight)?.offset_bytes + slot - pool.window.offset_bytes) / ARENA_ALIGN_BYTES)
        };
        let args = ExpertArgs {
            x_at,
            x_stride,
            x_pair_stride: p.x_pair_stride,
            q_at: quantised.0,
            q_stride: quantised.1,
            out_at,
            out_stride,
            out_pair_stride: outs,
            out_in_scratch,
            ids_at,
            ids_stride,
            used,
            experts: w.experts,
            cols: w.cols,
            outs,
            row_bytes: word(w.row_bytes())?,
            w0_at_units: units(p.first)?,
            row_offset: p.first.row_offset,
            w1_at_units: p.second.map_or(Ok(NONE), units)?,
            up_row_offset: p.second.map_or(0, |m| m.row_offset),
            slot_stride_units: word(w.expert_stride_bytes / ARENA_ALIGN_BYTES)?,
            first_slot: pool.first_slot,
            slots: pool.slots,
            table_at,
            scale_at,
            up_scale_at,
            activation: p.activation,
            up_at: p.up_at,
            choices_at: grouped.map_or(NONE, |g| g.choices_at),
            tiles_at: grouped.map_or(NONE, |g| g.tiles_at),
            tile: self.target.tiles.matrix_rows,
        };
        let mut call = self.products_call(p, outs, grouped.is_some())?;
        call.format = Some(w.format);
        call.gated = p.second.is_some();
        let call = call.with(Operand::W0, Some(pool.window)).with(Operand::W2, w2).with(Operand::State, state);
        self.push(call.work(&work), args);
        Ok(())
    }

    fn products_call(&self, p: &Products<'_>, outs: u32, tiled: bool) -> Outcome<Call> {
        let (tiles, one) = (&self.target.tiles, Extent::Fixed(1));
        let (count, used) = (self.count_of(p.ids), p.ids.width);
        let pairs = self.max_pairs(p.ids);
        if !tiled {
            self.check_groups_yz(pairs as u32)?;
            let each = Extent::Counted { count, first: 0, most: u32::MAX, times: used, per: 1, extra: 0 };
            return Ok(Call::new(Kernel::ExpertVec, [Extent::Fixed(outs.div_ceil(tiles.vector_outs)), each, one]));
        }
        let experts = self.weight(p.first.weight)?.experts;
        self.check_groups_yz(max_tiles(pairs, experts, tiles.matrix_rows))?;
        let extra = pairs.min(u64::from(experts)) as u32;
        let per = tiles.matrix_rows;
        let each = Extent::Counted { count, first: 0, most: u32::MAX, times: used, per, extra };
        Ok(Call::new(Kernel::ExpertMul, [Extent::Fixed(outs.div_ceil(tiles.matrix_outs)), each, one]))
    }

    fn expert_sum(&mut self, products: Summands, ids: View, weights: View, scale: Option<WeightId>, out: View) -> Outcome {
        let mut views = vec![ids, weights, out];
        views.extend(products.in_work());
        let work = self.work(&views)?;
        let (products_at, products_stride, products_in_scratch) = match products {
            Summands::Work(x) => self.place(x, &work).map(|(at, stride)| (at, stride, 0))?,
            Summands::Scratch { at, stride } => (at, stride, 1),
        };
        let (ids_at, ids_stride) = self.place(ids, &work)?;
        let (weights_at, weights_stride) = self.place(weights, &work)?;
        let (out_at, out_stride) = self.place(out, &work)?;
        let (w2, scale_at) = self.vector(scale)?;
        let experts = scale.map_or(Ok(1), |s| self.weight(s).map(|w| w.cols * w.rows))?;
        let args = ExpertSumArgs {
            products_at,
            products_stride,
            products_in_scratch,
            ids_at,
            ids_stride,
            weights_at,
            weights_stride,
            out_at,
            out_stride,
            used: ids.width,
            experts,
            width: out.width,
            scale_at,
        };
        let call = Call::new(Kernel::ExpertSum, self.columns_by_rows(out.width, out)?).work(&work).with(Operand::W2, w2);
        self.push(call, args);
        Ok(())
    }
}
