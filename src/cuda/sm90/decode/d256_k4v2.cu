#define OSCAR_DECODE_SHAPE 256, 4, 2
#include "cuda/sm90/decode/instantiate.h"
