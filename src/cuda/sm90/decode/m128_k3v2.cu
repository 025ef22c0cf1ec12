#define OSCAR_DECODE_SHAPE 128, 3, 2
#define OSCAR_DECODE_MEAN true
#include "cuda/sm90/decode/instantiate.h"
