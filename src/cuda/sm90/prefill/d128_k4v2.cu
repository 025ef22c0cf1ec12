#define OSCAR_PREFILL_SHAPE 128, 4, 2
#include "cuda/sm90/prefill/instantiate.h"
