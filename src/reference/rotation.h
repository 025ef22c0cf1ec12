// Rotations of rows in fp64: by position (RoPE) and by the Hadamard matrix.
#pragma once

#include <span>

#include "format/rope_spec.h"

namespace oscar::reference {

// Rotates x in place by `position`, magnitude included; negative positions rotate back but keep
// multiplying by the magnitude.
void rotate_by_position(std::span<double> x, const RopeSpec& spec, double position);

// x ← x·H with H the normalised Sylvester matrix, by recursion on halves: (a, b) → ((a + b)H', (a −
// b)H')/√2. The size is a power of two.
void hadamard(std::span<double> x);

// Index whose `num_bits` bits are those of `index` in reverse.
unsigned reverse_bits(unsigned index, int num_bits);

}  // namespace oscar::reference
