//! What a run may ask of a program, checked before anything is touched. Shared by all backends.

use crate::program::{Earlier, Op, Program, Row, RunParams, Stage, StateKind};

/// Neighbouring rows of a window that belong to one sequence; their indices follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub first: usize,
    pub len: usize,
    pub slot: u32,
    /// Token index of the first row.
    pub index: u32,
}

impl Span {
    /// Position of the token `tokens_back` before row `i` of the span. Before the window all tokens but those of `earlier` stand
    /// as far before its first row as their index.
    pub fn position_before(&self, rows: &[Row], earlier: &[Earlier], i: usize, tokens_back: usize) -> [u32; 3] {
        if tokens_back <= i {
            return rows[self.first + i - tokens_back].position;
        }
        let back = (tokens_back - i) as u32;
        let known = earlier.iter().find(|e| e.slot == self.slot && e.index + back == self.index);
        known.map_or_else(|| rows[self.first].position.map(|p| p.saturating_sub(back)), |e| e.position)
    }
}

/// Bounds that the state used by a program sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub max_rows: u32,
    pub max_outputs: u32,
    /// Sequence slots of all state that the program touches.
    pub slots: u32,
    /// Cells of the shortest cache.
    pub cells: u32,
    /// Versions of the recurrent state.
    pub versions: u32,
    /// Rows that an output takes in, its own and those behind it.
    pub joined: u32,
}

impl Limits {
    pub fn of(stage: &Stage, program: &Program) -> Limits {
        let shape = program.shape;
        let mut limits = Limits {
            max_rows: shape.max_rows,
            max_outputs: shape.max_outputs,
            slots: u32::MAX,
            cells: u32::MAX,
            versions: u32::MAX,
            joined: 1,
        };
        for step in &program.steps {
            if let Op::JoinRows { x, out } = &step.op {
                limits.joined = limits.joined.max(out.width / x.width.max(1));
            }
        }
        for state in program.steps.iter().filter_map(|step| step.op.state()).map(|id| stage.state(id)) {
            if matches!(state.kind, StateKind::ExpertSlots { .. }) {
                continue;
            }
            limits.slots = limits.slots.min(state.slots);
            match state.kind {
                StateKind::Kv { cells, .. } | StateKind::IndexKeys { cells, .. } => limits.cells = limits.cells.min(cells),
                StateKind::Delta { versions, .. } => limits.versions = limits.versions.min(versions),
                StateKind::ConvHistory { .. } | StateKind::ExpertSlots { .. } => {}
            }
        }
        limits
    }

    /// Checks the parameters of a run and finds its spans.
    pub fn check(&self, params: &RunParams<'_>, spans: &mut Vec<Span>) -> Result<(), String> {
        let rows = params.rows;
        if rows.is_empty() || rows.len() > self.max_rows as usize {
            return Err(format!("a window of {} rows; the program takes 1 to {}", rows.len(), self.max_rows));
        }
        if params.outputs.len() > self.max_outputs as usize {
            return Err(format!("{} outputs; the program gives at most {}", params.outputs.len(), self.max_outputs));
        }
        let last = |output: u32| u64::from(output) + u64::from(self.joined) - 1;
        if let Some(output) = params.outputs.iter().find(|output| last(**output) >= rows.len() as u64) {
            return Err(format!("output of row {output} in a window of {} rows", rows.len()));
        }
        rows.iter().enumerate().try_for_each(|(i, row)| self.check_row(i, row))?;
        find_spans(rows, spans)
    }

    fn check_row(&self, i: usize, row: &Row) -> Result<(), String> {
        let below = |what: &str, value: u32, limit: u32| {
            if value < limit { Ok(()) } else { Err(format!("row {i}: {what} {value}, there are only {limit}")) }
        };
        below("slot", row.slot, self.slots)?;
        below("token index", row.index, self.cells)?;
        below("state version to read", row.state_read, self.versions)?;
        below("state version to write", row.state_write, self.versions)
    }
}

fn find_spans(rows: &[Row], spans: &mut Vec<Span>) -> Result<(), String> {
    spans.clear();
    for (i, row) in rows.iter().enumerate() {
        if let Some(span) = spans.last_mut().filter(|span| span.slot == row.slot) {
            let expected = u64::from(span.index) + span.len as u64;
            if u64::from(row.index) != expected {
                return Err(format!("row {i}: token index {} of slot {}, expected {expected}", row.index, row.slot));
            }
            span.len += 1;
            continue;
        }
        if spans.iter().any(|span| span.slot == row.slot) {
            return Err(format!("row {i}: the rows of slot {} are not together", row.slot));
        }
        spans.push(Span { first: i, len: 1, slot: row.slot, index: row.index });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::TokenId;

    const LIMITS: Limits = Limits { max_rows: 4, max_outputs: 2, slots: 3, cells: 10, versions: 2, joined: 1 };

    fn check(rows: &[Row], outputs: &[u32]) -> Result<Vec<Span>, String> {
        let mut spans = Vec::new();
        LIMITS.check(&RunParams { rows, outputs, earlier: &[] }, &mut spans).map(|()| spans)
    }

    fn row(slot: u32, index: u32) -> Row {
        Row::text(slot, index, TokenId(0))
    }

    #[test]
    fn windows_fall_into_spans() {
        let spans = check(&[row(2, 7), row(2, 8), row(0, 0)], &[2]).unwrap();
        let expected = [Span { first: 0, len: 2, slot: 2, index: 7 }, Span { first: 2, len: 1, slot: 0, index: 0 }];
        assert_eq!(spans, expected);
    }

    #[test]
    fn bad_parameters_are_refused() {
        assert!(check(&[], &[]).is_err());
        assert!(check(&[row(0, 0); 5], &[]).is_err());
        assert!(check(&[row(0, 0)], &[0, 0, 0]).is_err());
        assert!(check(&[row(0, 0)], &[1]).is_err());
        assert!(check(&[row(3, 0)], &[]).is_err());
        assert!(check(&[row(0, 10)], &[]).is_err());
        assert!(check(&[Row { state_read: 2, ..row(0, 0) }], &[]).is_err());
        assert!(check(&[Row { state_write: 2, ..row(0, 0) }], &[]).is_err());
        assert!(check(&[row(0, 1), row(0, 1)], &[]).is_err());
        assert!(check(&[row(0, 1), row(0, 3)], &[]).is_err());
        assert!(check(&[row(0, 1), row(1, 3), row(0, 2)], &[]).is_err());
    }
}
