#define OSCAR_DECODE_SHAPE 64, 3, 2
#include "cuda/sm90/decode/instantiate.h"
