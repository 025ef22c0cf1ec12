#define OSCAR_DECODE_SHAPE 64, 4, 4
#include "cuda/sm90/decode/instantiate.h"
