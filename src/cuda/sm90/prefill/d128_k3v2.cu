#define OSCAR_PREFILL_SHAPE 128, 3, 2
#include "cuda/sm90/prefill/instantiate.h"
