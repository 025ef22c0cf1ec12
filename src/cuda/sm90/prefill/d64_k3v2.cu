#define OSCAR_PREFILL_SHAPE 64, 3, 2
#include "cuda/sm90/prefill/instantiate.h"
