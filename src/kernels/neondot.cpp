#define OSCAR_KERNEL_NAMESPACE neondot
#include "simd/neon.h"
// The ISA header comes first.
#include "kernels/instantiate.h"
