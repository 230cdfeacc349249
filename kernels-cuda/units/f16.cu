#include "../products/unit.h"

FORMAT_UNIT(f16, F16)
