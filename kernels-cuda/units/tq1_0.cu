#include "../products/unit.h"

FORMAT_UNIT(tq1_0, TQ1_0)
