#define OSCAR_DECODE_TRELLIS 256, false
#include "cuda/sm90/decode/instantiate.h"
