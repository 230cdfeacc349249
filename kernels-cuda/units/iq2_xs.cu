#include "../products/unit.h"

FORMAT_UNIT(iq2_xs, IQ2_XS)
