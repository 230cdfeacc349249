// Kernels that do not depend on the format of weights.
#include "../prelude.h"
