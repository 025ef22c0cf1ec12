#define OSCAR_DECODE_TRELLIS 64, true
#include "cuda/sm90/decode/instantiate.h"
