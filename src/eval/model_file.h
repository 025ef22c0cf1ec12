// A model's GGUF file (or its shards) before any weights are loaded: shape and fingerprint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/gguf_check.h"
#include "format/artefact.h"

namespace oscar::eval {

struct ModelFile {
  std::string path;                   // of the first shard
  ModelFingerprint fingerprint;       // counts are 0 where the model has no attention
  std::int64_t context_length = 0;    // trained, in tokens; 0: not stated
  bool has_latent_attention = false;  // MLA: the cache holds a latent vector, not keys and values
};

// Checks every shard (see check_gguf) and the keys that a shape is made of. Throws Error naming the
// file, the key, its value and what would be right.
ModelFile open_model_file(const std::string& path);

// Throws Error(kUnsupported) when the packed cache cannot hold this model's keys and values.
void check_packed_cache_supports(const ModelFile& model);

}  // namespace oscar::eval
