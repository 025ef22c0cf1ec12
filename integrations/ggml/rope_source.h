// Where a key's position and rotation come from: the ROPE node that the rows of SET_ROWS descend
// from.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <optional>
#include <string>

#include "format/rope_spec.h"

namespace oscar::ggml_plugin {

struct RopeSource {
  const ggml_tensor* node = nullptr;  // the ROPE node; null: the rows do not descend from one
  bool rotation_known =
      false;  // nothing after the node disturbs the rotation, and it has one position a token
  std::string note;  // why the rotation is not known
};

// Walks from the rows (SET_ROWS' src[0]) towards their origin.
RopeSource find_rope(const ggml_tensor* rows);

// Positions of the tokens: I32 [num_tokens]; null when there are several a token (M-RoPE) or none.
const ggml_tensor* rope_positions(const RopeSource& source);

// The rotation as data. Reads the frequency factors (src[2]), a weight. Only where rotation_known.
RopeSpec rope_spec_of(const ggml_tensor* rope_node);

// Nothing when both rotate alike, to 1e-5 relative in every frequency and the magnitude; otherwise
// what differs, both values.
std::optional<std::string> rope_difference(const RopeSpec& model, const RopeSpec& artefact);

}  // namespace oscar::ggml_plugin
