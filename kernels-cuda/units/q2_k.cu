#include "../products/unit.h"

FORMAT_UNIT(q2_k, Q2_K)
