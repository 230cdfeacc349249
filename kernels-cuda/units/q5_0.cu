#include "../products/unit.h"

FORMAT_UNIT(q5_0, Q5_0)
