#include "../products/unit.h"

FORMAT_UNIT(nvfp4, NVFP4)
