#include "cache/cache.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "cache/copy_store.h"
#include "cache/layer_stores.h"
#include "cache/page_pool.h"
#include "cache/token_bytes.h"

namespace oscar::cache {
namespace {

struct Sequence {
  bool in_use = false;
  std::int64_t num_tokens = 0;
  std::vector<std::int32_t> pages;         // ids; room for the longest sequence is reserved
  std::vector<std::int64_t> layer_tokens;  // [num_layers] tokens that the layer has rows of
};

// Where a layer's planes lie within a page: [num_kv_heads] runs of K plane, V plane.
struct LayerPlace {
  std::int64_t offset_bytes, head_bytes, k_plane_bytes;
};

[[noreturn]] void refuse(const std::string& name, std::int64_t value, const std::string& legal) {
  throw Error(ErrorCode::kInvalidArgument,
              "cache: " + name + " is " + std::to_string(value) + "; it must be " + legal);
}

void require_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    refuse(name, value, std::to_string(least) + " to " + std::to_string(most));
}

CacheOptions checked(const CacheOptions& options) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  require_range("num_pages", options.num_pages, 1, kMost);
  require_range("max_sequences", options.max_sequences, 1, kMost);
  require_range("sink_tokens", options.sink_tokens, 0, kMost);
  require_range("recent_tokens", options.recent_tokens, 0, kMost);
  require_range("max_append_tokens", options.max_append_tokens, 1, kMost);
  require_range("max_position", options.max_position, 1, kMost - kPageSize);
  require_range("num_threads", options.num_threads, 1, kMost);
  return options;
}

std::int64_t pages_for(std::int64_t num_tokens) { return (num_tokens + kPageSize - 1) / kPageSize; }

}  // namespace

struct Cache::Impl {
  CacheOptions options;
  std::int64_t max_tokens;  // of a sequence
  std::vector<LayerCodec> codecs;
  std::vector<LayerPlace> places;
  std::int64_t page_bytes = 0;
  AlignedBuffer<std::uint8_t> bytes;  // [num_pages][page_bytes]
  PagePool pool;
  std::unique_ptr<CopyStore> copies;
  LayerStores stores;
  std::vector<Sequence> sequences;
  std::vector<std::int64_t> slots;  // [max_append_tokens] scratch of append_layer
  std::vector<std::int64_t> predecessors;
  std::vector<std::int32_t> positions;  // [max_append_tokens]

  Impl(const Artefact& artefact, const CacheOptions& given);

  Sequence& sequence(SequenceId id) {
    if (id < 0 || id >= std::ssize(sequences) || !sequences[id].in_use)
      refuse("sequence", id, "one that was created and not freed");
    return sequences[id];
  }
  int checked_layer(int layer) const {
    require_range("layer", layer, 0, std::ssize(codecs) - 1);
    return layer;
  }
  // The sequence, once every layer has the rows of its last append.
  Sequence& settled(SequenceId id) {
    Sequence& s = sequence(id);
    for (std::size_t layer = 0; layer < codecs.size(); ++layer) {
      if (s.layer_tokens[layer] != s.num_tokens)
        refuse("layer without its rows of the last append", static_cast<std::int64_t>(layer),
               "given to append_layer first");
    }
    return s;
  }
  void release(std::int32_t page) {
    pool.release(page);
    if (pool.references(page) == 0) stores.drop(std::int64_t{page} * kPageSize, kPageSize);
  }
  std::int64_t slot(const Sequence& s, std::int64_t token) const {
    return std::int64_t{s.pages[token / kPageSize]} * kPageSize + token % kPageSize;
  }
  PlaneView k_view(int layer) const { return plane_view(layer, 0, codecs[layer].k_layout()); }
  PlaneView v_view(int layer) const {
    return plane_view(layer, places[layer].k_plane_bytes, codecs[layer].v_layout());
  }
  PlaneView plane_view(int layer, std::int64_t offset, const PlaneLayout& layout) const {
    return {const_cast<std::uint8_t*>(bytes.data()) + places[layer].offset_bytes + offset,
            page_bytes, places[layer].head_bytes, layout};
  }
};

Cache::Impl::Impl(const Artefact& artefact, const CacheOptions& given)
    : options(checked(given)),
      max_tokens(std::min<std::int64_t>(options.max_position, options.num_pages * kPageSize)),
      pool(static_cast<std::int32_t>(options.num_pages)) {
  if (artefact.layers.empty()) refuse("number of layers", 0, "at least 1");
  std::vector<std::shared_ptr<const RopeTable>> ropes;
  for (const RopeSpec& spec : artefact.ropes)
    ropes.push_back(std::make_shared<RopeTable>(spec, options.max_position));
  std::vector<CopyStore::LayerShape> shapes;
  bool all_exact = true;
  for (const ArtefactLayer& layer : artefact.layers) {
    if (layer.rope >= std::ssize(ropes))
      refuse("rope of layer " + std::to_string(layer.layer), layer.rope,
             "below " + std::to_string(ropes.size()));
    const auto rope = layer.rope < 0 ? nullptr : ropes[layer.rope];
    const LayerCodec& codec =
        codecs.emplace_back(artefact, layer, rope, kernels::selected_kernel_set());
    const std::int64_t k_bytes = codec.k_layout().plane_bytes(),
                       v_bytes = codec.v_layout().plane_bytes();
    places.push_back({page_bytes, k_bytes + v_bytes, k_bytes});
    if (codec.is_packed()) page_bytes += layer.num_kv_heads * (k_bytes + v_bytes);
    shapes.push_back({layer.num_kv_heads, layer.head_dim_k, layer.head_dim_v});
    all_exact = all_exact && codec.keys_are_exact() && codec.values_are_exact();
  }
  const auto total = checked_mul(static_cast<std::uint64_t>(options.num_pages),
                                 static_cast<std::uint64_t>(page_bytes));
  if (!total)
    refuse("num_pages", options.num_pages,
           "few enough that " + std::to_string(page_bytes) + " bytes each can be counted");
  bytes = AlignedBuffer<std::uint8_t>(*total);
  stores = LayerStores(codecs, options.num_pages * kPageSize, options.max_sequences);
  // What is stored exactly needs no copy.
  copies = std::make_unique<CopyStore>(
      shapes, options.max_sequences, all_exact ? 0 : options.sink_tokens,
      all_exact ? 0 : options.recent_tokens, options.max_append_tokens, max_tokens);
  sequences.resize(options.max_sequences);
  for (Sequence& s : sequences) {
    s.pages.reserve(pages_for(max_tokens));
    s.layer_tokens.assign(codecs.size(), 0);
  }
  slots.resize(options.max_append_tokens);
  predecessors.resize(options.max_append_tokens);
  positions.resize(options.max_append_tokens);
}

Cache::Cache(Artefact artefact, CacheOptions options)
    : impl_(std::make_unique<Impl>(artefact, options)) {}
Cache::~Cache() = default;

int Cache::num_layers() const { return static_cast<int>(impl_->codecs.size()); }
const CacheOptions& Cache::options() const { return impl_->options; }
const LayerCodec& Cache::codec(int layer) const {
  return impl_->codecs[impl_->checked_layer(layer)];
}
std::int64_t Cache::num_free_pages() const { return impl_->pool.num_free(); }
std::int64_t Cache::num_tokens(SequenceId sequence) const {
  return impl_->sequence(sequence).num_tokens;
}

std::uint64_t Cache::bytes() const {
  std::uint64_t total =
      impl_->bytes.size() + impl_->stores.bytes() + impl_->copies->bytes() + impl_->pool.bytes();
  for (const Sequence& s : impl_->sequences) {
    total += s.pages.capacity() * sizeof(std::int32_t) +
             s.layer_tokens.capacity() * sizeof(std::int64_t);
  }
  return total + (impl_->slots.capacity() + impl_->predecessors.capacity()) * sizeof(std::int64_t) +
         impl_->positions.capacity() * sizeof(std::int32_t);
}

SequenceId Cache::create_sequence() {
  for (std::size_t id = 0; id < impl_->sequences.size(); ++id) {
    Sequence& s = impl_->sequences[id];
    if (s.in_use) continue;
    s.in_use = true;
    s.num_tokens = 0;
    s.pages.clear();
    std::fill(s.layer_tokens.begin(), s.layer_tokens.end(), 0);
    return static_cast<SequenceId>(id);
  }
  throw Error(ErrorCode::kUnsupported,
              "cache: all " + std::to_string(impl_->options.max_sequences) +
                  " sequences are in use; free one or raise max_sequences");
}

SequenceId Cache::fork(SequenceId sequence) {
  const Sequence& from = impl_->settled(sequence);
  const SequenceId id = create_sequence();
  Sequence& to = impl_->sequences[id];
  to.num_tokens = from.num_tokens;
  to.pages.assign(from.pages.begin(), from.pages.end());
  to.layer_tokens = from.layer_tokens;
  for (const std::int32_t page : to.pages) impl_->pool.share(page);
  impl_->copies->copy_sequence(sequence, id, to.num_tokens);
  return id;
}

void Cache::free_sequence(SequenceId sequence) {
  Sequence& s = impl_->sequence(sequence);
  for (const std::int32_t page : s.pages) impl_->release(page);
  impl_->copies->shrink(sequence, s.num_tokens, 0);
  s.pages.clear();
  s.num_tokens = 0;
  s.in_use = false;
}

void Cache::truncate(SequenceId sequence, std::int64_t num_tokens) {
  Sequence& s = impl_->settled(sequence);
  require_range("num_tokens to keep", num_tokens, 0, s.num_tokens);
  while (std::ssize(s.pages) > pages_for(num_tokens)) {
    impl_->release(s.pages.back());
    s.pages.pop_back();
  }
  if (!impl_->stores.empty() && num_tokens % kPageSize != 0 &&
      impl_->pool.references(s.pages.back()) == 1) {
    impl_->stores.drop(impl_->slot(s, num_tokens), kPageSize - num_tokens % kPageSize);
  }
  impl_->copies->shrink(sequence, s.num_tokens, num_tokens);
  s.num_tokens = num_tokens;
  std::fill(s.layer_tokens.begin(), s.layer_tokens.end(), num_tokens);
}

bool Cache::begin_append(SequenceId sequence, std::int64_t num_tokens) {
  Sequence& s = impl_->settled(sequence);
  require_range("num_tokens to append", num_tokens, 0, impl_->options.max_append_tokens);
  require_range("length of the sequence", s.num_tokens + num_tokens, 0,
                impl_->options.max_position);
  const bool copy_last =
      num_tokens > 0 && s.num_tokens % kPageSize != 0 && impl_->pool.references(s.pages.back()) > 1;
  const std::int64_t new_pages = pages_for(s.num_tokens + num_tokens) - std::ssize(s.pages);
  if (new_pages + (copy_last ? 1 : 0) > impl_->pool.num_free()) return false;
  if (copy_last) {
    const std::int32_t own = impl_->pool.take();
    const std::uint8_t* const shared = impl_->bytes.data() + s.pages.back() * impl_->page_bytes;
    std::copy_n(shared, impl_->page_bytes, impl_->bytes.data() + own * impl_->page_bytes);
    impl_->stores.copy(impl_->codecs, std::int64_t{s.pages.back()} * kPageSize,
                       std::int64_t{own} * kPageSize, s.num_tokens % kPageSize);
    impl_->release(s.pages.back());
    s.pages.back() = own;
  }
  for (std::int64_t i = 0; i < new_pages; ++i) s.pages.push_back(impl_->pool.take());
  impl_->copies->grow(sequence, s.num_tokens, s.num_tokens + num_tokens);
  s.num_tokens += num_tokens;
  return true;
}

std::int64_t Cache::num_missing_tokens(SequenceId sequence, int layer) const {
  const Sequence& s = impl_->sequence(sequence);
  return s.num_tokens - s.layer_tokens[impl_->checked_layer(layer)];
}

bool Cache::append_layer(SequenceId sequence, int layer, const Rows& keys, const Rows& values) {
  Sequence& s = impl_->sequence(sequence);
  const std::int64_t first = s.layer_tokens[impl_->checked_layer(layer)];
  const std::int64_t count = s.num_tokens - first;
  for (const auto& [name, rows] :
       {std::pair{"number of keys", &keys}, {"number of values", &values}}) {
    if (rows->num_tokens != count)
      refuse(name, rows->num_tokens,
             std::to_string(count) + ", what begin_append reserved for the layer");
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t token = first + i;
    impl_->slots[i] = impl_->slot(s, token);
    impl_->predecessors[i] = token == 0 ? -1 : impl_->slot(s, token - 1);
    impl_->positions[i] = static_cast<std::int32_t>(token);
  }
  const LayerCodec& codec = impl_->codecs[layer];
  const int num_threads = impl_->options.num_threads;
  bool keys_finite, values_finite;
  if (impl_->stores.empty()) {
    keys_finite = codec.encode_keys(keys, impl_->positions.data(), impl_->slots.data(),
                                    impl_->k_view(layer), num_threads);
    values_finite =
        codec.encode_values(values, impl_->slots.data(), impl_->v_view(layer), num_threads);
  } else {
    const std::span cells(impl_->slots.data(), static_cast<std::size_t>(count));
    const std::span before(impl_->predecessors.data(), static_cast<std::size_t>(count));
    keys_finite = impl_->stores.keys(layer).write(codec.key_side(), keys, cells, before,
                                                  impl_->positions.data(), num_threads);
    values_finite = impl_->stores.values(layer).write(codec.value_side(), values, cells, before,
                                                      impl_->positions.data(), num_threads);
  }
  impl_->copies->store_keys(sequence, layer, first, keys);
  impl_->copies->store_values(sequence, layer, first, values);
  s.layer_tokens[layer] = s.num_tokens;
  return keys_finite && values_finite;
}

SequenceView Cache::view(SequenceId sequence, int layer) const {
  const Sequence& s = impl_->sequence(sequence);
  if (s.layer_tokens[impl_->checked_layer(layer)] != s.num_tokens)
    refuse("layer without its rows of the last append", layer, "given to append_layer first");
  SequenceView view;
  view.codec = &impl_->codecs[layer];
  view.k = impl_->k_view(layer);
  view.v = impl_->v_view(layer);
  if (!impl_->stores.empty()) {
    view.k_store = &impl_->stores.keys(layer);
    view.v_store = &impl_->stores.values(layer);
  }
  view.num_tokens = s.num_tokens;
  view.block_table = s.pages.data();
  view.sink_tokens = impl_->options.sink_tokens;
  view.recent_tokens = impl_->options.recent_tokens;
  if (impl_->copies->empty()) return view;
  view.copy_slots = impl_->copies->slots(sequence);
  view.k_copies = impl_->copies->keys(layer);
  view.v_copies = impl_->copies->values(layer);
  return view;
}

std::vector<std::uint8_t> Cache::token_bytes(SequenceId sequence, int layer,
                                             std::int64_t token) const {
  const SequenceView v = view(sequence, layer);
  require_range("token", token, 0, v.num_tokens - 1);
  if (v.k_store != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "cache: this method codes tokens in groups, in a layout of its own; single tokens "
                "have no bytes");
  }
  const std::int64_t k_bytes = token_row_bytes(v.k.layout), v_bytes = token_row_bytes(v.v.layout);
  std::vector<std::uint8_t> bytes(v.codec->num_kv_heads() * (k_bytes + v_bytes));
  const std::int64_t page = v.block_table[token / kPageSize];
  std::uint8_t* next = bytes.data();
  for (int head = 0; head < v.codec->num_kv_heads(); ++head) {
    read_token_bytes(v.k.layout, v.k.plane(page, head), token % kPageSize, next);
    read_token_bytes(v.v.layout, v.v.plane(page, head), token % kPageSize, next + k_bytes);
    next += k_bytes + v_bytes;
  }
  return bytes;
}

}  // namespace oscar::cache
