#define OSCAR_ATTEND_MAX_DIM 256
#include "cuda/sm80/attend/instantiate.h"
