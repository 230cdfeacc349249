#include "../products/unit.h"

FORMAT_UNIT(bf16, BF16)
