#include "../products/unit.h"

FORMAT_UNIT(iq3_s, IQ3_S)
