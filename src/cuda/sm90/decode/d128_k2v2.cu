#define OSCAR_DECODE_SHAPE 128, 2, 2
#include "cuda/sm90/decode/instantiate.h"
