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

#include "cache/group_store.h"
#include "cache/layer_codec.h"
#include "format/artefact.h"

namespace oscar::cache {

struct CacheOptions {
  std::int64_t num_pages = 0;  // of kPageSize tokens; every page holds all layers and KV heads
  int max_sequences = 1;
  std::int32_t sink_tokens = 64, recent_tokens = 256;  // down to 0
  std::int64_t max_append_tokens = 512;  // rows of one append that must be seen exactly at once
  std::int32_t max_position = 1 << 20;   // tokens of one sequence
  int num_threads = 1;
};

using SequenceId = std::int32_t;

// One sequence's cells in one layer, as attention reads them: token = cell = position. Valid until
// the cache changes.
struct SequenceView {
  const LayerCodec* codec = nullptr;
  PlaneView k, v;
  // Methods in a layout of their own: cells are page·64 + offset. Null: the planes.
  const GroupStore* k_store = nullptr;
  const GroupStore* v_store = nullptr;
  std::int64_t num_tokens = 0;
  const std::int32_t* block_table = nullptr;  // [⌈num_tokens/64⌉] page ids
  const std::int32_t* copy_slots = nullptr;   // [num_tokens], −1: none; null: there are no copies
  const bf16_t* k_copies = nullptr;           // [rows][num_kv_heads][head_dim_k]
  const bf16_t* v_copies = nullptr;           // [rows][num_kv_heads][head_dim_v]
  std::int32_t sink_tokens = 0, recent_tokens = 0;
};

// Layers are counted from 0 in the order of the artefact. Not thread-safe: one caller at a time.
// Memory is reserved at construction. Every method throws Error(kInvalidArgument) for a sequence,
// layer or token that does not exist.
class Cache {
 public:
  Cache(Artefact artefact, CacheOptions options);  // throws Error
  ~Cache();

  int num_layers() const;
  const CacheOptions& options() const;
  const LayerCodec& codec(int layer) const;
  std::int64_t num_free_pages() const;
  std::uint64_t bytes() const;  // all that was reserved: pages, copies, tables

  SequenceId create_sequence();  // throws Error(kUnsupported) when max_sequences are in use
  // Shares every page; a partial last page is copied by whoever writes to it first.
  SequenceId fork(SequenceId sequence);
  void free_sequence(SequenceId sequence);
  void truncate(SequenceId sequence, std::int64_t num_tokens);
  std::int64_t num_tokens(SequenceId sequence) const;

  // Reserves room for num_tokens more, at most max_append_tokens; then append_layer once for every
  // layer, which must be over before the next append, fork or truncate. false: not enough pages,
  // nothing changed.
  [[nodiscard]] bool begin_append(SequenceId sequence, std::int64_t num_tokens);
  // Tokens of the append in progress whose rows the layer still lacks.
  std::int64_t num_missing_tokens(SequenceId sequence, int layer) const;
  // keys, values: [num_tokens][num_kv_heads][head_dim] raw, keys after RoPE. false: NaN or Inf
  // (such rows are stored as zeros). Throws as GroupStore::write where the method codes groups.
  bool append_layer(SequenceId sequence, int layer, const Rows& keys, const Rows& values);
  // Throws when the layer still lacks the rows of the append in progress.
  SequenceView view(SequenceId sequence, int layer) const;
  // Packed bytes of one token, for tests and migration: for each KV head the K row, then the V row
  // (codes, scales, zeros).
  std::vector<std::uint8_t> token_bytes(SequenceId sequence, int layer, std::int64_t token) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar::cache
