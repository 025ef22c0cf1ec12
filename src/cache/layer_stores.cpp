#include "cache/layer_stores.h"

namespace oscar::cache {

LayerStores::LayerStores(const std::vector<LayerCodec>& codecs, std::int64_t num_cells,
                         std::int64_t num_sequences) {
  const auto make = [&](const SideCoder& side, AlignedBuffer<std::uint8_t>* memory) {
    *memory = AlignedBuffer<std::uint8_t>(
        static_cast<std::uint64_t>(store_bytes(*side.coder, num_cells, num_sequences)));
    return std::make_unique<GroupStore>(*side.coder, num_cells, num_sequences, memory->data());
  };
  for (const LayerCodec& codec : codecs) {
    if (codec.is_packed()) return;  // one method serves all layers
    Layer layer;
    layer.keys = make(codec.key_side(), &layer.key_memory);
    layer.values = make(codec.value_side(), &layer.value_memory);
    layers_.push_back(std::move(layer));
  }
}

void LayerStores::drop(std::int64_t first_cell, std::int64_t count) {
  for (Layer& layer : layers_) {
    for (std::int64_t cell = first_cell; cell < first_cell + count; ++cell) {
      layer.keys->drop(cell);
      layer.values->drop(cell);
    }
  }
}

void LayerStores::copy(const std::vector<LayerCodec>& codecs, std::int64_t from, std::int64_t to,
                       std::int64_t count) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (std::int64_t cell = 0; cell < count; ++cell) {
      layers_[i].keys->copy(codecs[i].key_side(), from + cell, to + cell);
      layers_[i].values->copy(codecs[i].value_side(), from + cell, to + cell);
    }
  }
}

std::uint64_t LayerStores::bytes() const {
  std::uint64_t sum = 0;
  for (const Layer& layer : layers_) sum += layer.key_memory.size() + layer.value_memory.size();
  return sum;
}

}  // namespace oscar::cache
