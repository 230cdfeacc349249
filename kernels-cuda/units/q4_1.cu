#include "../products/unit.h"

FORMAT_UNIT(q4_1, Q4_1)
