//! The one place where threads share memory without locks.
//!
//! During a run the arenas are [`Memory`]: raw bytes that all threads see. **Contract** of everything here:
//! - a run borrows the arenas for its whole length, and only the threads of one team work on them;
//! - all threads execute the same steps with a barrier between two steps;
//! - within a step a byte is either only read, or written by exactly one thread (which may also read it).
//!
//! The last point follows from program checks (the operands of an op that are written overlap no other operand, see
//! `prepare`) together with [`MatMut::pieces`], which deals each piece to one thread. Where an op splits its work in another
//! way it calls an `unsafe` method and says why its parts are disjoint.

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;

/// One thread's place in its team.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    pub index: usize,
    pub count: usize,
}

impl Member {
    /// This thread's part of `items`: contiguous, sizes differ by at most one.
    pub fn share(&self, items: usize) -> Range<usize> {
        let start = items * self.index / self.count;
        let end = items * (self.index + 1) / self.count;
        start..end
    }
}

/// Bytes that all threads of a run see.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    base: *mut u8,
    len: usize,
    owner: PhantomData<&'a mut [u8]>,
}

// SAFETY: a `Memory` gives access only under the contract of this module, which excludes races.
unsafe impl Send for Memory<'_> {}
// SAFETY: as above.
unsafe impl Sync for Memory<'_> {}

impl<'a> Memory<'a> {
    pub fn new(bytes: &'a mut [u8]) -> Memory<'a> {
        Memory { base: bytes.as_mut_ptr(), len: bytes.len(), owner: PhantomData }
    }

    /// A piece of the memory, which may share bytes with other pieces. Panics outside the memory, as a place would.
    pub fn part(self, bytes: Range<usize>) -> Memory<'a> {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len, "a piece lies outside its memory");
        // SAFETY: inside the memory, as just checked. The piece gives access under the same contract.
        Memory { base: unsafe { self.base.add(bytes.start) }, len: bytes.len(), owner: PhantomData }
    }

    /// The address of `len` elements from byte `offset`. Panics outside the memory: places are checked in `prepare`.
    fn address<T: Pod>(&self, offset: usize, len: usize) -> *mut T {
        let end = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        assert!(end.is_some_and(|end| end <= self.len), "a place lies outside its arena");
        // SAFETY: `offset` is inside the memory, as just checked.
        let address = unsafe { self.base.add(offset) }.cast::<T>();
        assert!(address.is_aligned(), "a place is not aligned");
        address
    }

    /// `len` elements from byte `offset`.
    ///
    /// # Safety
    /// No thread writes them during this step.
    pub unsafe fn read<T: Pod>(&self, offset: usize, len: usize) -> &'a [T] {
        // SAFETY: inside the memory and aligned (checked by `address`), initialised (mappings are zeroed, `Pod` allows
        // any bytes), not written meanwhile (caller).
        unsafe { std::slice::from_raw_parts(self.address(offset, len), len) }
    }

    /// `len` elements from byte `offset`, for writing.
    ///
    /// # Safety
    /// This thread alone touches them during this step, through this slice alone while it lives.
    pub unsafe fn write<T: Pod>(&self, offset: usize, len: usize) -> &'a mut [T] {
        // SAFETY: as in `read`; exclusive (caller).
        unsafe { std::slice::from_raw_parts_mut(self.address(offset, len), len) }
    }
}

/// Rows of a buffer that are only read during this step.
#[derive(Debug, Clone, Copy)]
pub struct Mat<'a, T> {
    memory: Memory<'a>,
    offset: usize,
    stride: usize,
    width: usize,
    rows: usize,
    element: PhantomData<T>,
}

impl<'a, T: Pod> Mat<'a, T> {
    /// # Safety
    /// No thread writes the columns `0..width` of any of the rows during this step. (The others are not touched.)
    pub unsafe fn new(memory: Memory<'a>, offset: usize, rows: usize, width: usize, stride: usize) -> Mat<'a, T> {
        assert!(width <= stride);
        Mat { memory, offset, stride, width, rows, element: PhantomData }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn width(&self) -> usize {
        self.width
    }

    #[inline]
    pub fn row(&self, row: usize) -> &'a [T] {
        self.part(row, 0, self.width)
    }

    /// `len` columns of a row from `column`.
    #[inline]
    pub fn part(&self, row: usize, column: usize, len: usize) -> &'a [T] {
        assert!(row < self.rows && column + len <= self.width);
        let offset = self.offset + (row * self.stride + column) * size_of::<T>();
        // SAFETY: columns of this matrix, which nobody writes (promised to `new`).
        unsafe { self.memory.read(offset, len) }
    }
}

impl<'a> Mat<'a, f32> {
    /// Some rows with what lies between them, and the distance of their starts: for kernels that take strides. The gaps are not
    /// to be read: they may belong to anybody.
    pub fn spanning(&self, rows: Range<usize>) -> (&'a [f32], usize) {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        let len = if rows.is_empty() { 0 } else { (rows.len() - 1) * self.stride + self.width };
        let offset = self.offset + rows.start.min(self.rows.saturating_sub(1)) * self.stride * size_of::<f32>();
        // SAFETY: as in `part` for the columns; the programs' checks keep a product from writing into the buffer it reads, so that
        // nobody writes the gaps during this step either.
        (unsafe { self.memory.read(offset, len) }, self.stride)
    }
}

/// Rows of a buffer that this step writes.
#[derive(Debug)]
pub struct MatMut<'a, T> {
    memory: Memory<'a>,
    offset: usize,
    stride: usize,
    width: usize,
    rows: usize,
    member: Member,
    element: PhantomData<T>,
}

/// A run of columns of one row that belongs to this thread.
#[derive(Debug)]
pub struct Piece<'a, T> {
    pub row: usize,
    /// Number of the piece within the row.
    pub number: usize,
    /// First column.
    pub column: usize,
    pub data: &'a mut [T],
}

impl<'a, T: Pod> MatMut<'a, T> {
    /// # Safety
    /// Every thread of the team makes one `MatMut` for these columns during this step, with its own `member`, and nothing else
    /// touches them.
    pub unsafe fn new(memory: Memory<'a>, offset: usize, rows: usize, width: usize, stride: usize, member: Member) -> Self {
        assert!(width <= stride && member.index < member.count);
        MatMut { memory, offset, stride, width, rows, member, element: PhantomData }
    }

    /// This thread's share of the pieces of all rows. Piece `n` of a row is the `len` columns from column `n * step`
    /// (fewer at the end of the row); `step >= len`.
    pub fn pieces(&mut self, step: usize, len: usize) -> impl Iterator<Item = Piece<'_, T>> {
        assert!(step >= len && len > 0);
        let per_row = self.width.div_ceil(step);
        let this: &Self = self;
        this.member.share(this.rows * per_row).map(move |item| {
            let (row, number) = (item / per_row, item % per_row);
            let column = number * step;
            let end = (column + len).min(this.width);
            // SAFETY: pieces do not overlap (`step >= len`), each belongs to one thread's share, and this iterator, which
            // borrows the only `MatMut` of the thread, gives it out once.
            Piece { row, number, column, data: unsafe { this.part(row, column..end) } }
        })
    }

    /// Whole rows, dealt to the threads.
    pub fn whole_rows(&mut self) -> impl Iterator<Item = Piece<'_, T>> {
        let width = self.width;
        self.pieces(width, width)
    }

    /// Columns of a row.
    ///
    /// # Safety
    /// This thread alone touches them during this step, through this slice alone while it lives.
    pub unsafe fn part<'b>(&self, row: usize, columns: Range<usize>) -> &'b mut [T]
    where
        'a: 'b,
    {
        assert!(row < self.rows && columns.end <= self.width && columns.start <= columns.end);
        let offset = self.offset + (row * self.stride + columns.start) * size_of::<T>();
        // SAFETY: the caller's promise.
        unsafe { self.memory.write(offset, columns.len()) }
    }
}

/// Takes `len` elements, aligned for vectors, from the front of a thread's scratch.
pub fn carve<'s, T: Pod>(scratch: &mut &'s mut [u8], len: usize) -> &'s mut [T] {
    let bytes = carve_bytes::<T>(len);
    let taken = std::mem::take(scratch);
    let (piece, rest) = taken.split_at_mut(bytes);
    *scratch = rest;
    bytemuck::cast_slice_mut(&mut piece[..len * size_of::<T>()])
}

/// What [`carve`] takes for `len` elements.
pub fn carve_bytes<T>(len: usize) -> usize {
    (len * size_of::<T>()).next_multiple_of(SCRATCH_ALIGN)
}

/// Alignment of scratch pieces: a cache line.
pub const SCRATCH_ALIGN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for count in 1..7 {
            for items in 0..40 {
                let mut next = 0;
                for index in 0..count {
                    let share = Member { index, count }.share(items);
                    assert_eq!(share.start, next);
                    assert!(share.len() <= items.div_ceil(count));
                    next = share.end;
                }
                assert_eq!(next, items);
            }
        }
    }

    #[test]
    fn pieces_of_all_threads_cover_the_columns_once() {
        let mut bytes = vec![0u8; 5 * 16 * 4];
        for (step, len) in [(3, 3), (4, 2), (13, 13), (1, 1)] {
            bytes.fill(0);
            let memory = Memory::new(&mut bytes);
            for index in 0..3 {
                // SAFETY: one thread in this test.
                let mut mat = unsafe { MatMut::<u32>::new(memory, 4, 4, 13, 16, Member { index, count: 3 }) };
                for piece in mat.pieces(step, len) {
                    assert_eq!(piece.column, piece.number * step);
                    piece.data.iter_mut().for_each(|v| *v += 1);
                }
            }
            let values: &[u32] = bytemuck::cast_slice(&bytes);
            for (i, v) in values.iter().enumerate() {
                let column = (i + 15) % 16;
                let inside = (1..1 + 64).contains(&i) && column < 13 && column % step < len;
                assert_eq!(*v, u32::from(inside), "element {i}");
            }
        }
    }
}
