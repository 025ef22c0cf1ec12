#define OSCAR_DECODE_SHAPE 256, 4, 4
#include "cuda/sm90/decode/instantiate.h"
