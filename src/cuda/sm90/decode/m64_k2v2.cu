#define OSCAR_DECODE_SHAPE 64, 2, 2
#define OSCAR_DECODE_MEAN true
#include "cuda/sm90/decode/instantiate.h"
