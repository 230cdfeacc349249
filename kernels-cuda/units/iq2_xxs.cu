#include "../products/unit.h"

FORMAT_UNIT(iq2_xxs, IQ2_XXS)
