//! What no model exceeds. Inside these bounds sums and products over layers, rows, cells and slots stay inside 64 bits.

use super::{
    ConvFacts, DenseFacts, ExpertFacts, LayerFacts, LayerWork, Mixer, ModelFactsError, PlanModel, TableFacts, WorkBuffer,
};
use crate::model::MAX_PICTURE_TOKENS;
use crate::plan::size::MAX_SIZE_BYTES;

/// More layers than any model has; keeps a broken file from asking for endless tables.
pub const MAX_LAYERS: u32 = 1024;

/// No width, head count or kernel size is larger.
pub const MAX_DIM: u32 = 1 << 16;

/// Experts of a layer.
pub const MAX_EXPERTS: u64 = 1 << 16;

pub const MAX_STREAMS: u32 = 64;

/// Elements of the keys of one token in one layer.
const MAX_KV_WIDTH: u64 = 1 << 18;
/// Weights of the experts that one token calls in a layer, and of one of them.
const MAX_ACTIVE_PARAMS: u64 = 1 << 44;
const MAX_DELTA_BYTES: u64 = 1 << 34;
const MAX_CONV_ROWS: u64 = 1 << 12;
const MAX_CONV_CHANNELS: u64 = 1 << 24;
/// Bytes of all buffers of a layer for one row.
const MAX_ROW_BYTES: u64 = 1 << 38;

/// What a number stands for, the number, and the most that it may be.
type Bound = (&'static str, u128, u64);

impl PlanModel {
    /// # Errors
    /// Names the first number that is larger than any model's.
    pub fn check(&self) -> Result<(), ModelFactsError> {
        let layers = self.layers.len() as u128;
        let mut bounds: Vec<Bound> = vec![
            ("number of layers", layers, MAX_LAYERS.into()),
            ("width", self.width.into(), MAX_DIM.into()),
            ("number of residual streams", self.streams.into(), MAX_STREAMS.into()),
            ("bytes of all weights", self.weight_bytes(), MAX_SIZE_BYTES),
            ("bytes of the files", self.file_bytes.into(), 2 * MAX_SIZE_BYTES),
            table("bytes of the embedding", &self.embedding),
        ];
        bounds.extend(self.layers.iter().chain(self.draft.as_ref().map(|d| &d.block)).flat_map(of_layer));
        if let Some(ngram) = &self.ngram {
            bounds.push(table("bytes of the n-gram table", &ngram.table));
            bounds.push(("floats of n-grams for a token", ngram.floats_per_token.into(), 1 << 28));
        }
        if let Some(vision) = &self.vision {
            let bytes = [vision.work_bytes(MAX_PICTURE_TOKENS), vision.kept_bytes(MAX_PICTURE_TOKENS, self.width)];
            bounds.extend(bytes.map(|bytes| ("bytes of the vision encoder's buffers", bytes.into(), MAX_SIZE_BYTES)));
        }
        bounds.extend(self.work.iter().flat_map(of_work));
        let blocks = self.layers.iter().chain(self.draft.as_ref().map(|d| &d.block));
        let forms = self.work.len() as u64;
        bounds.extend(blocks.map(|l| ("place of a layer's buffers", 1 + l.work.usual.max(l.work.short) as u128, forms)));
        if layers == 0 || self.width == 0 || self.streams == 0 {
            return Err(ModelFactsError::TooFew);
        }
        match bounds.into_iter().find(|(_, value, most)| *value > u128::from(*most)) {
            Some((what, found, most)) => Err(ModelFactsError::TooLarge { what, found, most }),
            None => Ok(()),
        }
    }

    fn weight_bytes(&self) -> u128 {
        let dense = |d: &DenseFacts| u128::from(d.bytes.max(d.largest_bytes));
        let of_layer =
            |l: &LayerFacts| dense(&l.dense) + l.experts.as_ref().map_or(0, |e| u128::from(e.slab_bytes) * u128::from(e.count));
        let draft = self.draft.as_ref().map_or(0, |d| of_layer(&d.block) + u128::from(d.head_bytes));
        let vision = self.vision.as_ref().map_or(0, |v| dense(&v.weights) + u128::from(v.places_bytes));
        self.layers.iter().map(of_layer).sum::<u128>() + dense(&self.head) + draft + vision
    }
}

fn table(what: &'static str, table: &TableFacts) -> Bound {
    (what, u128::from(table.row_bytes) * u128::from(table.rows), MAX_SIZE_BYTES)
}

fn of_layer(layer: &LayerFacts) -> Vec<Bound> {
    let mut bounds: Vec<Bound> = Vec::new();
    bounds.extend(layer.experts.iter().flat_map(of_experts));
    bounds.extend(layer.ngram_conv.iter().flat_map(of_conv));
    match layer.mixer {
        Mixer::Attention { q_heads, kv_heads, head_dim, index } => {
            bounds.push(("width of queries", u128::from(q_heads) * u128::from(head_dim), 1 << 24));
            bounds.push(("width of keys and values", u128::from(kv_heads) * u128::from(head_dim), MAX_KV_WIDTH));
            bounds.push(("width of indexer keys", index.map_or(0, |i| i.dim).into(), MAX_DIM.into()));
        }
        Mixer::Delta { value_heads, key_dim, value_dim, conv } => {
            let state = 4 * u128::from(value_heads) * u128::from(key_dim) * u128::from(value_dim);
            bounds.push(("bytes of a delta state", state, MAX_DELTA_BYTES));
            bounds.extend(of_conv(&conv));
        }
    }
    bounds
}

fn of_work(work: &LayerWork) -> [Bound; 3] {
    let bytes = |buffers: &[WorkBuffer]| buffers.iter().map(|b| u128::from(b.row_bytes)).sum();
    let of = |buffers| ("bytes of a layer's buffers for a row", bytes(buffers), MAX_ROW_BYTES);
    [of(&work.whole), of(&work.partial), ("floats of a product's row", work.product_floats.into(), MAX_ROW_BYTES / 4)]
}

fn of_experts(experts: &ExpertFacts) -> [Bound; 3] {
    [
        ("number of experts in a layer", experts.count.into(), MAX_EXPERTS),
        ("number of experts of a token", experts.used.into(), experts.count.into()),
        ("weights of a token's experts", u128::from(experts.params) * u128::from(experts.used.max(1)), MAX_ACTIVE_PARAMS),
    ]
}

fn of_conv(conv: &ConvFacts) -> [Bound; 2] {
    [
        ("rows of a convolution", conv.rows.into(), MAX_CONV_ROWS),
        ("channels of a convolution", conv.channels.into(), MAX_CONV_CHANNELS),
    ]
}
