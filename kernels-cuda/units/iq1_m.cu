#include "../products/unit.h"

FORMAT_UNIT(iq1_m, IQ1_M)
