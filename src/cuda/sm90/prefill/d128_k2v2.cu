#define OSCAR_PREFILL_SHAPE 128, 2, 2
#include "cuda/sm90/prefill/instantiate.h"
