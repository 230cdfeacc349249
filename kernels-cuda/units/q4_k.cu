#include "../products/unit.h"

FORMAT_UNIT(q4_k, Q4_K)
