#include "../products/unit.h"

FORMAT_UNIT(q4_0, Q4_0)
