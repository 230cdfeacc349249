// The one list of formats: entry point suffix, format, weights and bytes of a block. In the order of src/quant/table.rs.
#pragma once
#include "floats.h"
#include "fp4.h"
#include "iquants.h"
#include "kquants.h"
#include "legacy.h"
#include "ternary.h"

#define FORMATS(X)              \
    X(f32, F32, 1, 4)           \
    X(f16, F16, 1, 2)           \
    X(bf16, BF16, 1, 2)         \
    X(q8_0, Q8_0, 32, 34)       \
    X(q4_0, Q4_0, 32, 18)       \
    X(q4_1, Q4_1, 32, 20)       \
    X(q5_0, Q5_0, 32, 22)       \
    X(q5_1, Q5_1, 32, 24)       \
    X(q2_k, Q2_K, 256, 84)      \
    X(q3_k, Q3_K, 256, 110)     \
    X(q4_k, Q4_K, 256, 144)     \
    X(q5_k, Q5_K, 256, 176)     \
    X(q6_k, Q6_K, 256, 210)     \
    X(iq1_s, IQ1_S, 256, 50)    \
    X(iq1_m, IQ1_M, 256, 56)    \
    X(iq2_xxs, IQ2_XXS, 256, 66) \
    X(iq2_xs, IQ2_XS, 256, 74)  \
    X(iq2_s, IQ2_S, 256, 82)    \
    X(iq3_xxs, IQ3_XXS, 256, 98) \
    X(iq3_s, IQ3_S, 256, 110)   \
    X(iq4_nl, IQ4_NL, 32, 18)   \
    X(iq4_xs, IQ4_XS, 256, 136) \
    X(q2_0, Q2_0, 64, 18)       \
    X(mxfp4, MXFP4, 32, 17)     \
    X(nvfp4, NVFP4, 64, 36)     \
    X(tq1_0, TQ1_0, 256, 54)    \
    X(tq2_0, TQ2_0, 256, 66)
