#define OSCAR_DECODE_SHAPE 128, 4, 2
#include "cuda/sm90/decode/instantiate.h"
