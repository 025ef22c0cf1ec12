#define OSCAR_ATTEND_MAX_DIM 128
#include "cuda/sm80/attend/instantiate.h"
