#include "../products/unit.h"

FORMAT_UNIT(iq4_xs, IQ4_XS)
