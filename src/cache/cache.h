// The paged cache of a model: pages, sequences, windows. For hosts without a cache of their own
// (the C ABI); llama.cpp's plugin keeps llama.cpp's cells and shares the codec and the attention.
//
// A token is encoded once, when it arrives; sinks and recent tokens also have exact BF16 copies.
// fork shares pages copy-on-write; truncate drops tokens and keeps the bytes of the rest; dropping
// a copy never touches codes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/layer_codec.h"
#include "format/artefact.h"

namespace oscar::cache {

struct CacheOptions {
  std::int64_t num_pages = 0;  // of kPageSize tokens; every page holds all layers and KV heads
  int max_sequences = 1;
  std::int32_t sink_tokens = 64, recent_tokens = 256;  // down to 0
  std::int64_t max_append_tokens = 512;  // rows of one append that must be seen exactly at once
  std::int32_t max_position = 1 << 20;
  int num_threads = 1;
};

using SequenceId = std::int32_t;

// Not thread-safe: one caller at a time. Memory is reserved at construction.
class Cache {
 public:
  Cache(Artefact artefact, CacheOptions options);  // throws Error
  ~Cache();

  int num_layers() const;
  std::int64_t num_free_pages() const;
  std::uint64_t bytes() const;  // all that was reserved: pages, copies, tables

  SequenceId create_sequence();          // throws Error(kUnsupported) when max_sequences are in use
  SequenceId fork(SequenceId sequence);  // shares full pages; the last, partial page is copied on
                                         // the next write
  void free_sequence(SequenceId sequence);
  void truncate(SequenceId sequence, std::int64_t num_tokens);
  std::int64_t num_tokens(SequenceId sequence) const;

  // Reserves room for num_tokens more; then append_layer once for every layer. false: not enough
  // pages, nothing changed.
  [[nodiscard]] bool begin_append(SequenceId sequence, std::int64_t num_tokens);
  // keys, values: [num_tokens][num_kv_heads][head_dim] raw, keys after RoPE. false: NaN or Inf
  // (stored as zeros).
  bool append_layer(SequenceId sequence, int layer, const Rows& keys, const Rows& values);
  // Queries of the last num_queries tokens against the whole sequence, causal. out:
  // [num_queries][num_q_heads][head_dim_v].
  void attend_layer(SequenceId sequence, int layer, int num_q_heads, const float* q,
                    std::int64_t num_queries, float scale, float* out, float* lse);
  // Packed bytes of one token, for tests and migration: K row then V row in logical order (codes,
  // scales, zeros).
  std::vector<std::uint8_t> token_bytes(SequenceId sequence, int layer, std::int64_t token) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar::cache
