#include "../products/unit.h"

FORMAT_UNIT(q5_1, Q5_1)
