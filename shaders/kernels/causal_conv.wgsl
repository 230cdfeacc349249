// One thread a channel works through the rows of a sequence, then keeps the newest inputs.

#include "common/work.wgsl"
#include "common/functions.wgsl"

fn ring_place(slot: u32, token: u32, channel: u32) -> u32 {
    return args.state_at + slot * args.slot_stride + token % args.ring_rows * args.channels + channel;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let channel = group.x * THREADS + thread;
    if (channel >= args.channels) {
        return;
    }
    let span = run[RUN_SPANS_AT] + group.y * SPAN_WORDS;
    let first_row = run[span + SPAN_FIRST_ROW];
    let rows = run[span + SPAN_ROWS];
    let slot = run[span + SPAN_SLOT];
    let index = run[span + SPAN_INDEX];
    for (var i = 0u; i < rows; i++) {
        var sum = 0.0;
        for (var tap = 0u; tap < args.taps; tap++) {
            let back = (args.taps - 1u - tap) * args.dilation;
            let weight = bitcast<f32>(w2[args.weight_at + channel * args.taps + tap]);
            if (back <= i) {
                sum += weight * work_f32(args.x_at + (first_row + i - back) * args.x_stride + channel);
            } else if (back <= index + i) {
                sum += weight * bitcast<f32>(state[ring_place(slot, index + i - back, channel)]);
            }
        }
        set_work(args.out_at + (first_row + i) * args.out_stride + channel, silu(sum));
    }
    for (var i = max(rows, args.ring_rows) - args.ring_rows; i < rows; i++) {
        state[ring_place(slot, index + i, channel)] = work[args.x_at + (first_row + i) * args.x_stride + channel];
    }
}
