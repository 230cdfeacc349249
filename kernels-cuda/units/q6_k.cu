#include "../products/unit.h"

FORMAT_UNIT(q6_k, Q6_K)
