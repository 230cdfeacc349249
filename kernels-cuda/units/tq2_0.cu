#include "../products/unit.h"

FORMAT_UNIT(tq2_0, TQ2_0)
