// A probe is one fixed row per layer, side and KV head, stored after its transform. It shows that a
// matrix is the one that was meant: a transposed matrix is as orthogonal as the right one, and so
// is that of another layer, head or side. Internal to format.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/artefact.h"

namespace oscar {

enum class Side { kKey = 0, kValue = 1 };
inline const char* side_name(Side side) { return side == Side::kKey ? "k" : "v"; }

// probe·R for every head: [num_kv_heads][head_dim]. The probe's entry i is ±1/√head_dim, negative
// where the top bit of mix(((2·layer + side)·2^16 + head)·2^16 + i) is set; mix is the SplitMix64
// step.
std::vector<float> probe_outputs(const ArtefactLayer& layer, Side side);

// Throws Error(kCorrupt) naming layer and head where a stored output is off by more than
// kMaxOrthogonalityError of its column's norm. (Entries rounded to BF16 are off by at most 2^-8 of
// it, the stored output's own rounding included.)
void check_probes(const ArtefactLayer& layer, Side side, const std::vector<float>& stored,
                  const std::string& name);

}  // namespace oscar
