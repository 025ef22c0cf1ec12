#define OSCAR_KERNEL_NAMESPACE avx2
#include "simd/avx2.h"
// The ISA header comes first.
#include "kernels/instantiate.h"
