#define OSCAR_DECODE_SHAPE 64, 2, 2
#include "cuda/sm90/decode/instantiate.h"
