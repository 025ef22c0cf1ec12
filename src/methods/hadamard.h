// Fixed orthogonal mixes of a head's channels, row-major [head_dim][head_dim]: rotated = row · R.
#pragma once

#include <vector>

namespace oscar::methods {

// H·P: the normalised Sylvester Hadamard times the bit-reversal order for powers of two; otherwise
// H of the largest power-of-two factor ⊗ an orthonormal Hartley mix of the odd factor (no P).
std::vector<float> hadamard_times_p(int head_dim);
std::vector<double> hadamard_times_p_double(int head_dim);

// The same without P.
std::vector<float> hadamard(int head_dim);
std::vector<double> hadamard_double(int head_dim);

// The channel that P puts into place `channel`; P is its own inverse. Powers of two only.
int bit_reversed(int channel, int head_dim);

// Blocks of order `order` on the diagonal, which divides head_dim.
std::vector<float> block_hadamard(int head_dim, int order);

// diag(signs)·H with a fixed pseudo-random sign for each channel.
std::vector<float> signed_hadamard(int head_dim);
// The sign of channel i: −1 where the top bit of splitmix64's output number i from state 0 is set.
float channel_sign(int channel);

// Rows of independent Gaussians, made orthonormal from the first to the last (Gram-Schmidt): a
// uniformly random rotation. The Gaussians: Box-Muller over splitmix64 from state `seed`; each
// output's upper 53 bits plus a half, over 2^53, is a uniform u, and two of them, u and w, give
// sqrt(−2·ln u)·cos(2π·w) and then the same with the sine.
std::vector<float> random_rotation(int head_dim, unsigned seed);

}  // namespace oscar::methods
