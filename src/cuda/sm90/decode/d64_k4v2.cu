#define OSCAR_DECODE_SHAPE 64, 4, 2
#include "cuda/sm90/decode/instantiate.h"
