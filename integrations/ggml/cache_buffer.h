// One buffer of our buffer type. llama.cpp's cache tensors in it get their memory from cache groups
// and their bytes of the buffer itself are never touched; other tensors (the attention's results,
// saved sequences) use the buffer as plain memory.
#pragma once

#include <ggml-backend-impl.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache_group.h"
#include "cache_layer.h"
#include "config.h"
#include "reserved_memory.h"
#include "rope_book.h"

namespace oscar::ggml_plugin {

class CacheBuffer {
 public:
  explicit CacheBuffer(std::size_t num_bytes);
  ~CacheBuffer();
  CacheBuffer(const CacheBuffer&) = delete;
  CacheBuffer& operator=(const CacheBuffer&) = delete;

  std::uint8_t* data() const { return memory_.data(); }
  bool holds_cache() const { return !layers_.empty(); }
  const Config& config() const { return *config_; }
  const std::vector<std::unique_ptr<CacheLayer>>& layers() const { return layers_; }
  const std::vector<std::unique_ptr<CacheGroup>>& groups() const { return groups_; }
  RopeBook& ropes() { return ropes_; }
  bool said_shift = false;  // the note on context shifts was printed
  // Where this cache was attended: attention operations that the plugin computed, and views of keys
  // or values that another device took decoded to compute its own.
  std::uint64_t num_attended = 0, num_read_elsewhere = 0;

  // Takes a root into a layer. Throws Error when a cache of this kind cannot be held.
  void add_root(ggml_tensor* root, const CacheName& name);

  // Why this cache cannot be served; found while llama.cpp reserves its graphs. "" if nothing.
  const std::string& refusal() const { return refusal_; }
  void refuse(const std::string& reason);  // the first reason stays; printed once

  // Builds the groups when every layer's attention has been seen: checks the artefact against the
  // model. Reasons go to refusal().
  void prepare();
  // The layer's group with its memory. Throws Error(refusal) when there is none.
  CacheGroup& open_group(CacheLayer& layer);

  void clear(std::uint8_t value);
  std::uint64_t bytes() const;  // of pages and copies, as reserved
  // What the buffer says it holds follows what its groups reserve.
  void set_handle(ggml_backend_buffer* handle) { handle_ = handle; }

 private:
  std::shared_ptr<const Artefact> artefact_for_layers() const;
  void check_layer(const Artefact& artefact, const CacheLayer& layer) const;
  std::int64_t num_windows(const CacheGroup& group) const;
  void announce() const;
  void compare_with_f16() const;  // one line where our cache is the larger

  std::shared_ptr<const Config> config_;
  ReservedMemory memory_;
  ggml_backend_buffer* handle_ = nullptr;
  std::vector<std::unique_ptr<CacheLayer>> layers_;
  std::vector<std::unique_ptr<CacheGroup>> groups_;
  RopeBook ropes_;
  std::string refusal_;
};

// Buffers that hold a cache and live, in order of creation.
class LiveCaches {
 public:
  static LiveCaches& instance();
  void add(CacheBuffer* buffer);
  void remove(CacheBuffer* buffer);
  std::vector<CacheBuffer*> all() const;
  // Layers that some live cache holds, each once, ascending.
  std::vector<int> layer_indices() const;
  bool ever_any() const;

 private:
  mutable std::mutex mutex_;
  std::vector<CacheBuffer*> buffers_;
  bool ever_any_ = false;
};

}  // namespace oscar::ggml_plugin
