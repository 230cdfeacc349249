// The kernels of one block format. A unit includes this and says `FORMAT_UNIT(q4_k, Q4_K)`.
#pragma once
#include "../prelude.h"
#include "../run.h"
#include "../formats/all.h"
#include "vector.h"
#include "matrix.h"

#define FORMAT_UNIT(suffix, F)                                                          \
    VECTOR_KERNEL(suffix, F, 1)                                                         \
    VECTOR_KERNEL(suffix, F, 2)                                                         \
    VECTOR_KERNEL(suffix, F, 4)                                                         \
    VECTOR_KERNEL(suffix, F, 8)                                                         \
    KERNEL(mat_mul_##suffix, MatArgs) { mat_mul<F, false>(at, a); }                     \
    KERNEL(mat_mul_gated_##suffix, MatArgs) { mat_mul<F, true>(at, a); }                \
    KERNEL(expert_vec_##suffix, ExpertArgs) { expert_vec<F, false>(at, a); }            \
    KERNEL(expert_vec_gated_##suffix, ExpertArgs) { expert_vec<F, true>(at, a); }       \
    KERNEL(expert_mul_##suffix, ExpertArgs) { expert_mul<F, false>(at, a); }            \
    KERNEL(expert_mul_gated_##suffix, ExpertArgs) { expert_mul<F, true>(at, a); }

#define VECTOR_KERNEL(suffix, F, batch)                                                               \
    KERNEL(mat_vec_##suffix##_b##batch, MatArgs) { mat_vec<F, batch, false>(at, a); }                 \
    KERNEL(mat_vec_gated_##suffix##_b##batch, MatArgs) { mat_vec<F, batch, true>(at, a); }
