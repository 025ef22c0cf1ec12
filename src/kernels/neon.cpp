#define OSCAR_KERNEL_NAMESPACE neon
#include "simd/neon.h"
// The ISA header comes first.
#include "kernels/instantiate.h"
