// The cache of the layers that share their cells: packed planes, exact copies, and each cell's
// position.
//
// llama.cpp row (stream·kv_size + cell) ↔ slot (page·64 + offset): a stream starts on a page.
// Memory, one reservation:
//
//   K planes (or stores) of all layers | V planes | K copies [layers·capacity + scratch] | V copies
//
// A layer's copies are `capacity` rows; behind the last layer's lies the scratch, which holds all
// rows of the current ubatch of one layer at a time, so that every query sees the last tokens
// exactly, also across chunk borders. A layer that several layers attend has a scratch of its own.
// Copy index 0 is the layer's first row; scratch row i of layer l has index (layers − l)·capacity +
// scratch·rows + i, the same for keys and values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "cache/cache_bytes.h"
#include "cache/group_store.h"
#include "cache/layer_codec.h"
#include "cache_layer.h"
#include "copy_table.h"
#include "reserved_memory.h"
#include "rope_book.h"

namespace oscar::ggml_plugin {

struct GroupLayer {
  CacheLayer* info = nullptr;
  const ArtefactLayer* artefact = nullptr;
  std::unique_ptr<cache::LayerCodec> codec;
  PlaneView planes[2];  // without memory where the method's sides are in stores
  std::unique_ptr<cache::GroupStore> stores[2];  // null: packed planes
  std::int64_t scratch = 0;
  std::uint32_t transforms_hash = 0;  // of the method, the transforms and the means

  const PlaneView& plane(Side side) const { return planes[static_cast<int>(side)]; }
  cache::GroupStore& store(Side side) { return *stores[static_cast<int>(side)]; }
  const cache::GroupStore& store(Side side) const { return *stores[static_cast<int>(side)]; }
  cache::SideCoder coder(Side side) const {
    return side == Side::kKeys ? codec->key_side() : codec->value_side();
  }
  bool exact(Side side) const { return plane(side).layout.quant.bits == 16; }
  int head_dim(Side side) const { return plane(side).layout.head_dim; }
};

// The tokens that the graphs in progress write, for all layers of a group.
struct Ubatch {
  bool open = false;
  std::vector<std::int64_t> rows;   // llama.cpp's row of each token
  std::vector<std::int64_t> slots;  // page·64 + offset
  std::vector<std::int32_t> positions;
  // Row of the token before each in its sequence, −1: none; for methods that code groups of tokens.
  std::vector<std::int64_t> predecessors;
  std::vector<bool> written[2];  // [layers] by Side
  std::vector<bool> moved;       // [layers] its rows lie in its copies
};

// Whether a cell may be attended. A restore takes it row by row, layer after layer: until the last
// one it is partial, and refused once a row did not fit. Writing a cell makes it good.
enum class CellState : std::uint8_t { kGood, kPartial, kRefused };

// Not thread-safe: one llama.cpp context uses it at a time.
class CacheGroup {
 public:
  // The artefact, and the layers, outlive the group. Throws Error.
  CacheGroup(std::shared_ptr<const Artefact> artefact, Window window,
             const std::vector<CacheLayer*>& layers, RopeBook* ropes);

  // Reserves the memory; copies for `num_windows` sequences. Once, before anything below.
  void open(std::int64_t num_windows);
  bool is_open() const { return memory_.data() != nullptr; }
  // What was taken from the system for planes and copies.
  std::span<const std::uint8_t> reserved() const { return {memory_.data(), memory_.size()}; }

  const Artefact& artefact() const { return *artefact_; }
  const Window& window() const { return window_; }
  std::vector<GroupLayer>& layers() { return layers_; }
  const std::vector<GroupLayer>& layers() const { return layers_; }
  GroupLayer& layer(const CacheLayer& info) { return layers_[info.ordinal]; }
  std::int64_t kv_size() const { return kv_size_; }
  cache::CellExtent extent() const { return {kv_size_, num_streams_}; }
  std::int64_t num_rows() const { return kv_size_ * num_streams_; }
  std::int64_t first_page(std::int64_t stream) const { return stream * pages_per_stream_; }
  std::int64_t slot(std::int64_t row) const {
    return first_page(row / kv_size_) * kPageSize + row % kv_size_;
  }

  std::vector<std::int32_t>& positions() { return positions_; }  // [num_rows], −1: not written
  CopyTable& copies() { return copies_; }
  const CopyTable& copies() const { return copies_; }
  Ubatch& ubatch() { return ubatch_; }
  CellState cell_state(std::int64_t row) const { return cell_states_[row]; }
  void set_cell_state(std::int64_t row, CellState state);
  std::int64_t num_cells(CellState state) const { return num_in_state_[static_cast<int>(state)]; }
  // Why the cell is not good: the refused state's own line for refused ones.
  std::string unusable_reason(std::int64_t row) const;
  std::string refused_reason;       // of the first refused cell
  bool said_refused_state = false;  // it was printed
  std::vector<std::int32_t>& rows_to_restore() { return rows_to_restore_; }  // [num_rows]

  // Whether the codes lie in packed planes. If not, states and shifts are refused.
  bool is_packed() const { return layers_.front().codec->is_packed(); }
  // Throws Error(kUnsupported) saying that the method cannot do `what`, where it is not packed.
  void require_packed(const char* what) const;

  // Copy row `index` of a layer: [num_kv_heads·head_dim].
  bf16_t* copy(const GroupLayer& layer, Side side, std::int64_t index);
  std::int64_t scratch_index(const GroupLayer& layer, std::int64_t token) const;

  // Opens a ubatch whose rows, positions are set. Ends the one before.
  void begin_ubatch(const Visibility& visibility);
  // The layer's rows that later queries need leave the scratch; at once, or when the ubatch ends
  // where several layers read them.
  void finish_layer(GroupLayer& layer);
  // Ends the ubatch, whole or not, and gives shifted cells their new positions. Every access from
  // outside a graph calls it first.
  void settle();

  // A context shift takes the layers one by one; cells keep their old positions until all have been
  // moved.
  void begin_shift(int ordinal);
  void set_shifted(const std::vector<std::int64_t>& rows,
                   const std::vector<std::int32_t>& positions);

  // Codecs that can rotate to `position`. Throws Error(kUnsupported) beyond kMaxPosition.
  void reach_position(std::int32_t position);
  // Forgets every cell. `value` fills the memory.
  void clear(std::uint8_t value);

  std::uint64_t plane_bytes() const;  // of all pages, or stores
  std::uint64_t copy_bytes() const;   // of all slots
  std::uint64_t used_bytes() const;   // of written cells and copies in use
  std::uint64_t used_values() const;
  std::int64_t num_cells_used() const;
  // Copies that a stream of the cache keeps for one sequence; 0 where both sides are exact.
  std::int64_t window_tokens() const;

  // Bits of a stored value, copies left aside and every group of tokens full, over all layers: of a
  // side, and of both.
  double bits_per_value(Side side) const;
  double code_bits() const;

 private:
  void build_codecs();
  std::int64_t side_bytes(const GroupLayer& layer, Side side) const;
  void move_rows(GroupLayer& layer);

  std::shared_ptr<const Artefact> artefact_;
  Window window_;
  RopeBook* ropes_;
  std::int32_t max_position_;
  std::int64_t kv_size_ = 0, num_streams_ = 0, pages_per_stream_ = 0;
  std::vector<GroupLayer> layers_;
  std::int64_t num_windows_ = 1;
  ReservedMemory memory_;
  bf16_t* copy_base_[2] = {nullptr, nullptr};
  std::int64_t row_values_[2] = {0, 0};
  std::vector<std::int32_t> positions_;
  CopyTable copies_;
  Ubatch ubatch_;
  std::vector<bool> shifted_layers_;
  std::vector<std::int64_t> shifted_rows_;
  std::vector<std::int32_t> shifted_positions_;
  std::vector<CellState> cell_states_;  // [num_rows]
  std::int64_t num_in_state_[3] = {0, 0, 0};
  std::vector<std::int32_t> rows_to_restore_;
};

}  // namespace oscar::ggml_plugin
