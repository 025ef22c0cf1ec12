#define OSCAR_ATTEND_MAX_DIM 64
#include "cuda/sm80/attend/instantiate.h"
