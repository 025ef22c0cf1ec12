#define OSCAR_KERNEL_NAMESPACE avx512vnni
#include "simd/avx512.h"
// The ISA header comes first.
#include "kernels/instantiate.h"
