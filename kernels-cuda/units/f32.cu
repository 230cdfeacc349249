#include "../products/unit.h"

FORMAT_UNIT(f32, F32)
