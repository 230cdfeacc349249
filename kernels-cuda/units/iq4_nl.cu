#include "../products/unit.h"

FORMAT_UNIT(iq4_nl, IQ4_NL)
