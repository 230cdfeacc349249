#include "../products/unit.h"

FORMAT_UNIT(q5_k, Q5_K)
