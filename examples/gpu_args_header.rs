//! Prints the C header of the GPU kernels' arguments, which lies in `kernels-cuda/args.h`.

fn main() {
    print!("{}", strata::backend::gpu::source::c_header());
}
