#define OSCAR_PREFILL_TRELLIS 64
#include "cuda/sm90/prefill/instantiate.h"
