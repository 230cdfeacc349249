#include "../products/unit.h"

FORMAT_UNIT(iq2_s, IQ2_S)
