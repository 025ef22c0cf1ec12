// The fixed mix H·P in double precision, for building and taking apart transforms.
#pragma once

#include <vector>

namespace oscar::calibrate {

// As hadamard_times_p in methods.h, row-major [head_dim][head_dim].
std::vector<double> hadamard_times_p_double(int head_dim);

}  // namespace oscar::calibrate
