// The stores of a cache's layers, for methods in a layout of their own; empty for packed planes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "cache/group_store.h"
#include "cache/layer_codec.h"

namespace oscar::cache {

class LayerStores {
 public:
  LayerStores() = default;
  LayerStores(const std::vector<LayerCodec>& codecs, std::int64_t num_cells,
              std::int64_t num_sequences);

  bool empty() const { return layers_.empty(); }
  const GroupStore& keys(int layer) const { return *layers_[layer].keys; }
  const GroupStore& values(int layer) const { return *layers_[layer].values; }
  GroupStore& keys(int layer) { return *layers_[layer].keys; }
  GroupStore& values(int layer) { return *layers_[layer].values; }

  // Of every layer.
  void drop(std::int64_t first_cell, std::int64_t count);
  void copy(const std::vector<LayerCodec>& codecs, std::int64_t from, std::int64_t to,
            std::int64_t count);
  std::uint64_t bytes() const;

 private:
  struct Layer {
    AlignedBuffer<std::uint8_t> key_memory, value_memory;
    std::unique_ptr<GroupStore> keys, values;
  };
  std::vector<Layer> layers_;
};

}  // namespace oscar::cache
