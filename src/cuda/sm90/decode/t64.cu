#define OSCAR_DECODE_TRELLIS 64, false
#include "cuda/sm90/decode/instantiate.h"
