#define OSCAR_KERNEL_NAMESPACE scalar
#include "simd/portable.h"
// The ISA header comes first.
#include "kernels/instantiate.h"
