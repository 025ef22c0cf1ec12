#define OSCAR_DECODE_TRELLIS 128, false
#include "cuda/sm90/decode/instantiate.h"
