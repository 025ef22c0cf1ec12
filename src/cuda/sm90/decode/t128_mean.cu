#define OSCAR_DECODE_TRELLIS 128, true
#include "cuda/sm90/decode/instantiate.h"
