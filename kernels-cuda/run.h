// The run block (src/backend/gpu/run_block.rs): what changes from run to run.
#pragma once

/// One row of the window.
struct Row {
    u32 slot, index, state_read, state_write, span, in_span;
};
DEVICE Row run_row(const u32* run, u32 row) {
    const u32* w = run + RUN_ROWS_AT + row * ROW_WORDS;
    return {w[ROW_SLOT], w[ROW_INDEX], w[ROW_STATE_READ], w[ROW_STATE_WRITE], w[ROW_SPAN], w[ROW_IN_SPAN]};
}

/// Rows of one sequence.
struct Span {
    u32 first_row, rows, slot, index;
};
DEVICE Span run_span(const u32* run, u32 span) {
    const u32* w = run + run[RUN_SPANS_AT] + span * SPAN_WORDS;
    return {w[SPAN_FIRST_ROW], w[SPAN_ROWS], w[SPAN_SLOT], w[SPAN_INDEX]};
}

/// The row of the window that output `i` is.
DEVICE u32 run_output(const u32* run, u32 i) { return run[run[RUN_OUTPUTS_AT] + i]; }

/// Cosines, then sines, of `pairs` pairs for a row.
DEVICE const float* run_angles(const u32* run, u32 angles_at, u32 pairs, u32 row) {
    return reinterpret_cast<const float*>(run + angles_at) + static_cast<u64>(row) * pairs * 2;
}
