#include "../products/unit.h"

FORMAT_UNIT(mxfp4, MXFP4)
