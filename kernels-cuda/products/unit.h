// The kernels of one block format. A unit includes this and says `FORMAT_UNIT(q4_k, Q4_K)`.
#pragma once
#include "../prelude.h"
#include "../run.h"
#include "../formats/all.h"
#include "vector.h"
#include "matrix.h"

#define FORMAT_UNIT(suffix, F)                                                    \
    KERNEL(mat_vec_##suffix##_b1, MatArgs) { mat_vec<F, 1>(at, a); }              \
    KERNEL(mat_vec_##suffix##_b4, MatArgs) { mat_vec<F, 4>(at, a); }              \
    KERNEL(mat_vec_##suffix##_b8, MatArgs) { mat_vec<F, 8>(at, a); }              \
    KERNEL(mat_mul_##suffix, MatArgs) { mat_mul<F, 1>(at, a); }                   \
    KERNEL(mat_mul_gated_##suffix, MatArgs) { mat_mul<F, 2>(at, a); }             \
    KERNEL(expert_vec_##suffix, ExpertArgs) { expert_vec<F>(at, a); }             \
    KERNEL(expert_mul_##suffix, ExpertArgs) { expert_mul<F, 1>(at, a); }          \
    KERNEL(expert_mul_gated_##suffix, ExpertArgs) { expert_mul<F, 2>(at, a); }
