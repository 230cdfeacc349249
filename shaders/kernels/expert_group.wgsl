// Sorts the pairs of a window by expert, ascending within an expert, and cuts each expert's pairs into tiles. One workgroup.



// Pairs of each expert, then where they begin.
var<workgroup> starts: array<u32, MAX_EXPERTS>;
var<workgroup> first_tiles: array<u32, MAX_EXPERTS>;

fn expert_of(pair: u32) -> u32 {
    return min(work[args.ids_at + pair / args.used * args.ids_stride + pair % args.used], args.experts - 1u);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32) {
    let pairs = run[RUN_ROWS] * args.used;
    for (var expert = thread; expert < args.experts; expert += THREADS) {
        var count = 0u;
        for (var pair = 0u; pair < pairs; pair++) {
            count += select(0u, 1u, expert_of(pair) == expert);
        }
        starts[expert] = count;
    }
    workgroupBarrier();
    if (thread == 0u) {
        var start = 0u;
        var tile = 0u;
        for (var expert = 0u; expert < args.experts; expert++) {
            let count = starts[expert];
            starts[expert] = start;
            first_tiles[expert] = tile;
            start += count;
            tile += (count + args.tile - 1u) / args.tile;
        }
        scratch[args.tiles_at] = tile;
    }
    workgroupBarrier();
    for (var expert = thread; expert < args.experts; expert += THREADS) {
        let start = starts[expert];
        var next = start;
        for (var pair = 0u; pair < pairs; pair++) {
            if (expert_of(pair) == expert) {
                scratch[args.choices_at + next] = pair;
                next += 1u;
            }
        }
        var entry = args.tiles_at + 1u + 3u * first_tiles[expert];
        for (var first = start; first < next; first += args.tile) {
            scratch[entry] = expert;
            scratch[entry + 1u] = first;
            scratch[entry + 2u] = min(args.tile, next - first);
            entry += 3u;
        }
    }
}
