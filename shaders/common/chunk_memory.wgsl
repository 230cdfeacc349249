// Keys and queries of a chunk times the state that threads hold: every thread reads them from workgroup memory.
fn multiply_state(thread: u32, rows_at: u32) {
    let at = rows_at + thread / CHUNK_CHANNELS * CHUNK_QUADS;
    for (var row = 0u; row < CHUNK_ROWS; row += 4u) {
#repeat r 4
        var sum$r = vec4<f32>(0.0);
#end
#repeat e CHUNK_QUADS
#repeat r 4
        sum$r = fma(chunk[at + (row + $ru) * KEY_QUADS + $eu], kept[$e], sum$r);
#end
#end
#repeat r 4
        set_partial(thread, row + $ru, sum$r);
#end
    }
}

fn add_to_state(thread: u32, row: u32, added: f32) {
    let at = row * KEY_QUADS + thread / CHUNK_CHANNELS * CHUNK_QUADS;
#repeat e CHUNK_QUADS
    kept[$e] = fma(chunk[at + $eu], vec4<f32>(added), kept[$e]);
#end
}
