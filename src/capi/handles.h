// What the opaque handles of the C interface hold.
#pragma once

#include <memory>
#include <optional>

#include "attention/sequence_attention.h"
#include "cache/cache.h"
#include "cache/layer_codec.h"
#include "format/artefact.h"
#include "oscar/oscar.h"

struct oscar_method {
  oscar::Artefact artefact;  // the specification's options applied
  std::int32_t sink_tokens = 0, recent_tokens = 0;
};

struct oscar_codec {
  oscar::cache::LayerCodec codec;
  std::int32_t max_position = 0;
};

struct oscar_cache {
  oscar::cache::Cache cache;
  oscar::attention::SequenceAttention attention;
  int num_q_heads = 0;

  oscar_cache(const oscar::Artefact& artefact, const oscar::cache::CacheOptions& options)
      : cache(artefact, options),
        attention(options.num_threads),
        num_q_heads(artefact.model.num_q_heads) {}
};
