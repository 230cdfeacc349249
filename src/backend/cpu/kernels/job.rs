//! What a call of a product is, in the form that the kernels of all levels take it.

use super::activations::{ActBlock, Acts};
use std::marker::PhantomData;
use std::ops::Range;

/// Where results go: `out[token * stride + row]`, shared by threads that each write other rows.
#[derive(Clone, Copy)]
pub struct OutView<'a> {
    ptr: *mut f32,
    tokens: usize,
    rows: usize,
    stride: usize,
    life: PhantomData<&'a mut [f32]>,
}

// SAFETY: a view is a pointer and sizes; who shares one has promised (see `OutView::shared`) that threads write
// different rows.
unsafe impl Send for OutView<'_> {}
// SAFETY: as above.
unsafe impl Sync for OutView<'_> {}

impl<'a> OutView<'a> {
    /// A view for one thread. `out` holds `tokens` rows of results that stand `stride` floats apart.
    ///
    /// # Panics
    /// If `out` is too short.
    pub fn new(out: &'a mut [f32], tokens: usize, rows: usize, stride: usize) -> OutView<'a> {
        assert!(tokens == 0 || rows <= stride && (tokens - 1) * stride + rows <= out.len());
        OutView { ptr: out.as_mut_ptr(), tokens, rows, stride, life: PhantomData }
    }

    /// A view that several threads may copy.
    ///
    /// # Safety
    /// `ptr[token * stride + row]` is valid for writes for all `token < tokens`, `row < rows` during `'a`, nothing else
    /// reads or writes there, and threads that use copies of the view at the same time write disjoint rows: they pass
    /// disjoint row ranges to the products.
    pub unsafe fn shared(ptr: *mut f32, tokens: usize, rows: usize, stride: usize) -> OutView<'a> {
        assert!(rows <= stride);
        OutView { ptr, tokens, rows, stride, life: PhantomData }
    }

    pub(super) fn holds(&self, tokens: usize, rows: usize) -> bool {
        tokens <= self.tokens && rows <= self.rows
    }

    /// # Safety
    /// `token` and `row` are inside the view.
    #[inline]
    pub(super) unsafe fn at(&self, token: usize, row: usize) -> *mut f32 {
        debug_assert!(token < self.tokens && row < self.rows);
        // SAFETY: inside the view.
        unsafe { self.ptr.add(token * self.stride + row) }
    }
}

/// Which rows of activations a product takes, in this order.
#[derive(Debug, Clone)]
pub enum Tokens<'a> {
    Rows(Range<usize>),
    /// For an expert: the rows of the tokens that were routed to it.
    List(&'a [u32]),
}

impl Tokens<'_> {
    pub fn len(&self) -> usize {
        match self {
            Tokens::Rows(range) => range.len(),
            Tokens::List(list) => list.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(super) fn get(&self, i: usize) -> usize {
        match self {
            Tokens::Rows(range) => range.start + i,
            Tokens::List(list) => list[i] as usize,
        }
    }

    pub(super) fn max(&self) -> Option<usize> {
        match self {
            Tokens::Rows(range) => (!range.is_empty()).then(|| range.end - 1),
            Tokens::List(list) => list.iter().max().map(|&max| max as usize),
        }
    }
}

/// A product of quantised weights and activations, with everything checked: `weights` has `row_bytes` for every row up
/// to `rows.end`, `acts` has `superblocks(k)` blocks for every token, `out` holds all results.
pub(super) struct Job<'a> {
    pub weights: &'a [u8],
    pub row_bytes: usize,
    pub rows: Range<usize>,
    pub k: usize,
    pub acts: Acts<'a>,
    pub tokens: Tokens<'a>,
    pub out: OutView<'a>,
}

impl Job<'_> {
    /// The blocks of the `i`-th token.
    #[inline]
    pub fn act_row(&self, i: usize) -> &[ActBlock] {
        let len = super::layout::superblocks(self.k);
        &self.acts.blocks[self.tokens.get(i) * len..][..len]
    }

    /// The bytes of a row of weights.
    #[inline]
    pub fn weight_row(&self, row: usize) -> &[u8] {
        &self.weights[row * self.row_bytes..][..self.row_bytes]
    }
}
