// Keys and queries of a chunk times the state that threads hold: a subgroup of eight reads eight quads together and hands them round.
// Every thread holds a whole channel.
fn multiply_state(thread: u32, rows_at: u32) {
    let mine = thread % SUBGROUP;
    for (var row = 0u; row < CHUNK_ROWS; row += 4u) {
#repeat r 4
        var sum$r = vec4<f32>(0.0);
#end
#repeat b CHUNK_OCTETS
#repeat r 4
        let quad$b_$r = chunk[rows_at + (row + $ru) * KEY_QUADS + $bu * 8u + mine];
#end
#repeat e 8
#repeat r 4
        sum$r = fma(subgroupBroadcast(quad$b_$r, $eu), kept[$bu * 8u + $eu], sum$r);
#end
#end
#end
#repeat r 4
        set_partial(thread, row + $ru, sum$r);
#end
    }
}

fn add_to_state(thread: u32, row: u32, added: f32) {
    let mine = thread % SUBGROUP;
#repeat b CHUNK_OCTETS
    let quad$b = chunk[row * KEY_QUADS + $bu * 8u + mine];
#repeat e 8
    kept[$bu * 8u + $eu] = fma(subgroupBroadcast(quad$b, $eu), vec4<f32>(added), kept[$bu * 8u + $eu]);
#end
#end
}
