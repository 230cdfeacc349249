@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = group.x * THREADS + thread;
    if (column < args.width) {
        let row = run[run[RUN_OUTPUTS_AT] + group.y];
        work[args.out_at + group.y * args.out_stride + column] = work[args.x_at + row * args.x_stride + column];
    }
}
