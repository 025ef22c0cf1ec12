#define OSCAR_PREFILL_TRELLIS 128
#include "cuda/sm90/prefill/instantiate.h"
