#include "../products/unit.h"

FORMAT_UNIT(q3_k, Q3_K)
