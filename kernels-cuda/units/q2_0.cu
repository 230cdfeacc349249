#include "../products/unit.h"

FORMAT_UNIT(q2_0, Q2_0)
