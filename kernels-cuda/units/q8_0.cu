#include "../products/unit.h"

FORMAT_UNIT(q8_0, Q8_0)
