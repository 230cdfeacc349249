#include "../products/unit.h"

FORMAT_UNIT(iq3_xxs, IQ3_XXS)
