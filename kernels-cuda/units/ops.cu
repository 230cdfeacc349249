// Kernels that do not depend on the format of weights.
#include "../prelude.h"
#include "../run.h"
#include "../ops/rowwise.h"
#include "../ops/quantise.h"
#include "../ops/attention.h"
#include "../ops/indexer.h"
#include "../ops/recurrent.h"
#include "../ops/experts.h"
