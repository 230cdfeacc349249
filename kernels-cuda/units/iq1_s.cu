#include "../products/unit.h"

FORMAT_UNIT(iq1_s, IQ1_S)
