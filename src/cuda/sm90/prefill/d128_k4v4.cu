#define OSCAR_PREFILL_SHAPE 128, 4, 4
#include "cuda/sm90/prefill/instantiate.h"
