#include "cache_group.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "layer_hash.h"
#include "methods/definition.h"

namespace oscar::ggml_plugin {
namespace {

constexpr std::size_t kRegionAlignment = 4096;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment;
}

const ArtefactLayer* find_layer(const Artefact& artefact, int layer) {
  for (const ArtefactLayer& candidate : artefact.layers) {
    if (candidate.layer == layer) return &candidate;
  }
  throw Error(ErrorCode::kMismatch,
              "the artefact has no layer " + std::to_string(layer) + "; calibrate on this model");
}

// The cell of the token before each new one: of the position before, in its stream, and seen by it.
std::vector<std::int64_t> find_predecessors(const std::vector<std::int64_t>& rows,
                                            const std::vector<std::int32_t>& positions,
                                            const std::vector<std::int32_t>& cell_positions,
                                            const Visibility& visibility) {
  std::vector<std::int64_t> result(rows.size(), -1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto token = static_cast<std::int64_t>(i);
    if (positions[i] == 0) continue;
    if (i > 0 && positions[i - 1] + 1 == positions[i] && visibility.sees(token, rows[i - 1])) {
      result[i] = rows[i - 1];
      continue;
    }
    const std::int64_t first = rows[i] / visibility.kv_size * visibility.kv_size;
    for (std::int64_t row = first; row < first + visibility.num_kv; ++row) {
      if (cell_positions[row] + 1 != positions[i] || row == rows[i]) continue;
      if (!visibility.sees(token, row)) continue;
      result[i] = row;
      break;
    }
  }
  return result;
}

}  // namespace

CacheGroup::CacheGroup(std::shared_ptr<const Artefact> artefact, Window window,
                       const std::vector<CacheLayer*>& layers, RopeBook* ropes)
    : artefact_(std::move(artefact)),
      window_(window),
      ropes_(ropes),
      max_position_(kFirstMaxPosition),
      kv_size_(layers.front()->kv_size()),
      num_streams_(layers.front()->num_streams()),
      pages_per_stream_((kv_size_ + kPageSize - 1) / kPageSize) {
  for (const Side side : {Side::kKeys, Side::kValues}) {
    row_values_[static_cast<int>(side)] = layers.front()->row_values(side);
  }
  for (CacheLayer* info : layers) {
    GroupLayer layer;
    layer.info = info;
    layer.artefact = find_layer(*artefact_, info->layer);
    layer.transforms_hash = hash_transforms(*artefact_, *layer.artefact);
    if (info->num_readers > 1)
      layer.scratch = 1 + std::count_if(layers_.begin(), layers_.end(),
                                        [](const GroupLayer& l) { return l.scratch > 0; });
    info->group = this;
    info->ordinal = static_cast<int>(layers_.size());
    layers_.push_back(std::move(layer));
  }
  build_codecs();
}

void CacheGroup::build_codecs() {
  for (GroupLayer& layer : layers_) {
    std::shared_ptr<const RopeTable> table;
    if (layer.artefact->rope >= 0) {
      table = ropes_->table(artefact_->ropes[layer.artefact->rope], max_position_);
    }
    layer.codec = std::make_unique<cache::LayerCodec>(*artefact_, *layer.artefact, std::move(table),
                                                      kernels::selected_kernel_set());
    layer.planes[0].layout = layer.codec->k_layout();
    layer.planes[1].layout = layer.codec->v_layout();
  }
}

void CacheGroup::reach_position(std::int32_t position) {
  if (position <= max_position_) return;
  if (position > kMaxPosition) {
    throw Error(ErrorCode::kUnsupported, "position " + std::to_string(position) +
                                             " is beyond the last of the cache, " +
                                             std::to_string(kMaxPosition));
  }
  while (max_position_ < position) max_position_ = 2 * max_position_ + 1;
  build_codecs();
}

std::int64_t CacheGroup::window_tokens() const {
  const bool exact = std::all_of(layers_.begin(), layers_.end(), [](const GroupLayer& layer) {
    return layer.exact(Side::kKeys) && layer.exact(Side::kValues);
  });
  return exact ? 0 : std::int64_t{window_.sink_tokens} + window_.recent_tokens;
}

void CacheGroup::open(std::int64_t num_windows) {
  num_windows_ = num_windows;
  const cache::CellExtent cells = extent();
  const std::int64_t capacity = cache::num_copies(window_tokens(), num_windows, cells);
  std::int64_t num_scratch = 1;
  for (const GroupLayer& layer : layers_) num_scratch = std::max(num_scratch, layer.scratch + 1);

  std::size_t offset = 0;
  for (int side = 0; side < 2; ++side) {
    for (GroupLayer& layer : layers_) {
      PlaneView& view = layer.planes[side];
      view.head_stride_bytes = view.layout.plane_bytes();
      view.page_stride_bytes = view.head_stride_bytes * layer.info->shape.num_kv_heads;
      view.base = reinterpret_cast<std::uint8_t*>(offset);
      offset += aligned(static_cast<std::size_t>(side_bytes(layer, static_cast<Side>(side))));
    }
  }
  std::size_t copy_offset[2];
  for (int side = 0; side < 2; ++side) {
    copy_offset[side] = offset;
    const std::int64_t rows =
        std::ssize(layers_) * capacity + (window_tokens() > 0 ? num_scratch * num_rows() : 0);
    offset += aligned(static_cast<std::size_t>(rows * row_values_[side]) * sizeof(bf16_t));
  }
  memory_ = ReservedMemory(offset);
  for (int side = 0; side < 2; ++side) {
    for (GroupLayer& layer : layers_) {
      layer.planes[side].base =
          memory_.data() + reinterpret_cast<std::size_t>(layer.planes[side].base);
      if (is_packed()) continue;
      layer.stores[side] =
          std::make_unique<cache::GroupStore>(*layer.coder(static_cast<Side>(side)).coder,
                                              num_rows(), num_windows, layer.planes[side].base);
    }
    copy_base_[side] = reinterpret_cast<bf16_t*>(memory_.data() + copy_offset[side]);
  }
  positions_.assign(num_rows(), -1);
  cell_states_.assign(num_rows(), CellState::kGood);
  num_in_state_[0] = num_rows();
  rows_to_restore_.assign(num_rows(), 0);
  copies_ = CopyTable(num_rows(), capacity, window_tokens() > 0 ? window_ : Window{});
}

bf16_t* CacheGroup::copy(const GroupLayer& layer, Side side, std::int64_t index) {
  const int s = static_cast<int>(side);
  return copy_base_[s] + (layer.info->ordinal * copies_.capacity() + index) * row_values_[s];
}

void CacheGroup::set_cell_state(std::int64_t row, CellState state) {
  --num_in_state_[static_cast<int>(cell_states_[row])];
  ++num_in_state_[static_cast<int>(state)];
  cell_states_[row] = state;
}

std::string CacheGroup::unusable_reason(std::int64_t row) const {
  return cell_state(row) == CellState::kRefused
             ? refused_reason
             : "a saved sequence was restored in part: its cells cannot be attended";
}

std::int64_t CacheGroup::scratch_index(const GroupLayer& layer, std::int64_t token) const {
  return (std::ssize(layers_) - layer.info->ordinal) * copies_.capacity() +
         layer.scratch * num_rows() + token;
}

void CacheGroup::begin_ubatch(const Visibility& visibility) {
  ubatch_.open = true;
  for (auto& written : ubatch_.written) written.assign(layers_.size(), false);
  ubatch_.moved.assign(layers_.size(), false);
  ubatch_.slots.clear();
  for (std::size_t i = 0; i < ubatch_.rows.size(); ++i) {
    const std::int64_t row = ubatch_.rows[i];
    positions_[row] = ubatch_.positions[i];
    ubatch_.slots.push_back(slot(row));
    set_cell_state(row, CellState::kGood);
  }
  ubatch_.predecessors.assign(ubatch_.rows.size(), -1);
  if (!is_packed()) {
    ubatch_.predecessors =
        find_predecessors(ubatch_.rows, ubatch_.positions, positions_, visibility);
  }
  copies_.begin(ubatch_.rows, ubatch_.positions, positions_, visibility);
}

void CacheGroup::require_packed(const char* what) const {
  if (is_packed()) return;
  throw Error(ErrorCode::kUnsupported, std::string("method '") + method_name(artefact_->method) +
                                           "' keeps its codes in a layout of its own, which " +
                                           what + "; naive, quarot, oscar and oscar-plus can");
}

std::int64_t CacheGroup::side_bytes(const GroupLayer& layer, Side side) const {
  if (!is_packed()) {
    return cache::store_bytes(*layer.coder(side).coder, num_rows(), num_windows_);
  }
  return cache::plane_bytes(layer.plane(side).layout, layer.info->shape.num_kv_heads, extent());
}

double CacheGroup::code_bits() const {
  double bytes = 0, values = 0;
  for (const GroupLayer& layer : layers_) {
    const methods::SideBytes sides = methods::bytes_per_token(*artefact_, *layer.artefact);
    bytes += sides.keys + sides.values;
    values += static_cast<double>(row_values_[0] + row_values_[1]);
  }
  return 8.0 * bytes / values;
}

double CacheGroup::bits_per_value(Side side) const {
  double bytes = 0;
  for (const GroupLayer& layer : layers_) {
    const methods::SideBytes sides = methods::bytes_per_token(*artefact_, *layer.artefact);
    bytes += side == Side::kKeys ? sides.keys : sides.values;
  }
  return 8.0 * bytes /
         (static_cast<double>(layers_.size()) *
          static_cast<double>(row_values_[static_cast<int>(side)]));
}

void CacheGroup::move_rows(GroupLayer& layer) {
  for (const CopyTable::Move& move : copies_.moves()) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      std::memcpy(copy(layer, side, move.slot), copy(layer, side, scratch_index(layer, move.token)),
                  static_cast<std::size_t>(row_values_[static_cast<int>(side)]) * sizeof(bf16_t));
    }
  }
  ubatch_.moved[layer.info->ordinal] = true;
}

void CacheGroup::finish_layer(GroupLayer& layer) {
  if (layer.scratch == 0) move_rows(layer);
}

void CacheGroup::begin_shift(int ordinal) {
  if (shifted_layers_.empty() || shifted_layers_[ordinal]) {
    settle();
    shifted_layers_.assign(layers_.size(), false);
  }
  shifted_layers_[ordinal] = true;
}

void CacheGroup::set_shifted(const std::vector<std::int64_t>& rows,
                             const std::vector<std::int32_t>& positions) {
  shifted_rows_ = rows;
  shifted_positions_ = positions;
}

void CacheGroup::settle() {
  for (std::size_t i = 0; i < shifted_rows_.size(); ++i)
    positions_[shifted_rows_[i]] = shifted_positions_[i];
  shifted_rows_.clear();
  shifted_positions_.clear();
  shifted_layers_.clear();
  if (!ubatch_.open) return;
  ubatch_.open = false;
  bool complete = true;
  for (GroupLayer& layer : layers_) {
    const int i = layer.info->ordinal;
    if (layer.scratch > 0 && ubatch_.written[0][i] && ubatch_.written[1][i]) move_rows(layer);
    complete = complete && ubatch_.moved[i];
  }
  if (complete) {
    copies_.commit();
  } else {
    copies_.abandon();
  }
}

void CacheGroup::clear(std::uint8_t value) {
  ubatch_ = Ubatch();
  shifted_layers_.clear();
  shifted_rows_.clear();
  shifted_positions_.clear();
  std::fill(positions_.begin(), positions_.end(), -1);
  for (std::int64_t row = 0; row < num_rows(); ++row) set_cell_state(row, CellState::kGood);
  refused_reason.clear();
  copies_.clear();
  memory_.fill(value);
  for (GroupLayer& layer : layers_) {
    for (const auto& store : layer.stores) {
      if (store != nullptr) store->clear();
    }
  }
}

std::uint64_t CacheGroup::plane_bytes() const {
  std::uint64_t bytes = 0;
  for (const GroupLayer& layer : layers_) {
    for (const Side side : {Side::kKeys, Side::kValues})
      bytes += static_cast<std::uint64_t>(side_bytes(layer, side));
  }
  return bytes;
}

std::uint64_t CacheGroup::copy_bytes() const {
  return static_cast<std::uint64_t>(
      std::ssize(layers_) * cache::copy_bytes(copies_.capacity(), row_values_[0] + row_values_[1]));
}

std::int64_t CacheGroup::num_cells_used() const {
  return std::count_if(positions_.begin(), positions_.end(), [](std::int32_t p) { return p >= 0; });
}

std::uint64_t CacheGroup::used_values() const {
  return static_cast<std::uint64_t>(num_cells_used() * std::ssize(layers_) *
                                    (row_values_[0] + row_values_[1]));
}

std::uint64_t CacheGroup::used_bytes() const {
  std::uint64_t bytes_per_cell = 0, store_bytes = 0;
  for (const GroupLayer& layer : layers_) {
    if (!is_packed()) {
      store_bytes += layer.stores[0]->used_bytes() + layer.stores[1]->used_bytes();
      continue;
    }
    for (const PlaneView& view : layer.planes) {
      bytes_per_cell += static_cast<std::uint64_t>(layer.info->shape.num_kv_heads *
                                                   view.layout.plane_bytes() / kPageSize);
    }
  }
  const std::int64_t pending = ubatch_.open ? std::ssize(copies_.moves()) : 0;
  const std::int64_t copies = std::min(copies_.capacity(), copies_.num_used() + pending);
  return static_cast<std::uint64_t>(num_cells_used()) * bytes_per_cell + store_bytes +
         static_cast<std::uint64_t>(copies * std::ssize(layers_) *
                                    (row_values_[0] + row_values_[1])) *
             sizeof(bf16_t);
}

}  // namespace oscar::ggml_plugin
