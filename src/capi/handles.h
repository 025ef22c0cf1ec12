// What the opaque handles of the C interface hold.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/sequence_attention.h"
#include "cache/cache.h"
#include "cache/layer_codec.h"
#include "calibrate/collector.h"
#include "format/artefact.h"
#include "format/artefact_file.h"
#include "oscar/oscar.h"

struct oscar_method {
  oscar::Artefact artefact;  // the specification's options applied
  std::int32_t sink_tokens = 0, recent_tokens = 0;
  bool force_float = false;  // the option `float`
};

struct oscar_codec {
  oscar::cache::LayerCodec codec;
  std::int32_t max_position = 0;
  bool force_float = false;
};

struct oscar_cache {
  oscar::cache::Cache cache;
  oscar::attention::SequenceAttention attention;
  int num_q_heads = 0;
  bool force_float = false;

  oscar_cache(const oscar_method& method, const oscar::cache::CacheOptions& options)
      : cache(method.artefact, options),
        attention(options.num_threads),
        num_q_heads(method.artefact.model.num_q_heads),
        force_float(method.force_float) {}
};

// The artefact and its tensors and texts, which point into it: it must stay where it was made.
struct oscar_artefact {
  oscar::Artefact artefact;
  oscar::ArtefactFile file;
  std::vector<oscar_tensor> tensors;  // without the probes
  std::vector<oscar_text> texts;

  // name: what messages call it.
  oscar_artefact(oscar::Artefact given, const std::string& name);
  oscar_artefact(const oscar_artefact&) = delete;
  oscar_artefact& operator=(const oscar_artefact&) = delete;
};

struct oscar_collector {
  oscar::calibrate::Collector collector;
  std::vector<std::unique_ptr<oscar::RopeTable>> tables;  // one for each RoPE that was given
};
