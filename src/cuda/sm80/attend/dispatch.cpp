// From a shape to its kernel.
#include "cuda/attend.h"

namespace oscar::cuda::sm80 {

AttendFunction attend_function(int, int) noexcept { return {}; }

}  // namespace oscar::cuda::sm80
