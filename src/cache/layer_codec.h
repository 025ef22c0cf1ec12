// The one encoder of a layer: mean, transform, clip, codes. A token's bytes depend on its key,
// value and position alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bf16.h"
#include "cache/rope_basis.h"
#include "format/artefact.h"
#include "format/plane_layout.h"
#include "kernels/kernels.h"
#include "kernels/rope_table.h"
#include "methods/row_coder.h"

namespace oscar::cache {

// Rows of one side for a run of tokens: [num_tokens][num_kv_heads][head_dim], strides in floats.
// Keys are after RoPE.
struct Rows {
  const float* data = nullptr;
  std::int64_t num_tokens = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

// An exact row or copy: BF16 in the raw basis. What BF16 cannot hold (NaN, Inf, beyond its range)
// makes the whole row zeros and the result false.
bool store_exact_row(const float* row, int head_dim, bf16_t* dst) noexcept;

// A side in a layout of the method's own: its coder, and the rotation before it.
struct SideCoder {
  const methods::RowCoder* coder = nullptr;
  const float* transform = nullptr;  // [num_kv_heads][head_dim][head_dim]; null: identity
  const kernels::KernelSet* kernels = nullptr;

  // Both [num_rows][num_kv_heads][head_dim].
  void rotate(const float* raw, std::int64_t num_rows, float* rotated) const;
  // One row, by the transpose: rotations of methods with coders are orthogonal.
  void rotate_back(const float* rotated, float* raw) const;
};

// Immutable after construction; every method is thread-safe and allocates only in the given
// scratch.
class LayerCodec {
 public:
  // Bits and clip come from the artefact (k_quant, v_quant, clip for those bits); group_size is
  // lowered to the largest legal divisor of the head size. `rope` may be shared by layers; it is
  // ignored where layer.rope is −1 (the mean is static, after RoPE). Throws Error(kInvalidArgument
  // | kMismatch) naming layer and tensor.
  LayerCodec(const Artefact& artefact, const ArtefactLayer& layer,
             std::shared_ptr<const RopeTable> rope, const kernels::KernelSet& kernels);

  int num_kv_heads() const { return num_kv_heads_; }
  const PlaneLayout& k_layout() const { return k_layout_; }
  const PlaneLayout& v_layout() const { return v_layout_; }

  // Whether both sides lie in packed planes. If not, they lie in stores (cache/group_store.h), and
  // the methods on planes below are not to be called.
  bool is_packed() const { return key_coder_ == nullptr; }
  SideCoder key_side() const;
  SideCoder value_side() const;

  // Token i goes to slot[i] (page·kPageSize + offset) of the view; −1 is skipped. 16 bits: BF16
  // rows in the raw basis. Returns false when a row held NaN or Inf (that row is stored as zeros;
  // the caller reports it).
  bool encode_keys(const Rows& keys, const std::int32_t* positions, const std::int64_t* slots,
                   const PlaneView& dst, int num_threads) const;
  bool encode_values(const Rows& values, const std::int64_t* slots, const PlaneView& dst,
                     int num_threads) const;

  // k̂, v̂ in the raw basis, mean added back, for state, shift and tests. rows:
  // [num_kv_heads][head_dim].
  void decode_key(std::int64_t slot, std::int32_t position, const PlaneView& src,
                  float* rows) const;
  void decode_value(std::int64_t slot, const PlaneView& src, float* rows) const;

  bool keys_are_exact() const { return k_layout_.quant.bits == 16; }
  bool values_are_exact() const { return v_layout_.quant.bits == 16; }

  // Attention's side of the transforms. Null: identity (exact sides; naive).
  const float* query_transform(int kv_head) const;   // [head_dim_k][head_dim_k]: q̃ = q · this
  const float* output_transform(int kv_head) const;  // [head_dim_v][head_dim_v]: o = õ · this
  const float* key_mean(int kv_head) const;          // [head_dim_k] before RoPE, or null: none
  const float* value_mean(int kv_head) const;        // [head_dim_v] raw basis, or null: none
  // The encoder's side, of all heads: [num_kv_heads][head_dim][head_dim], null: identity; and
  // [num_kv_heads] in (0, 1].
  const float* key_transform() const {
    return k_transform_.empty() ? nullptr : k_transform_.data();
  }
  const float* value_transform() const {
    return v_transform_.empty() ? nullptr : v_transform_.data();
  }
  const float* key_clip() const { return k_clip_.data(); }
  const float* value_clip() const { return v_clip_.data(); }
  const RopeTable* rope() const { return rope_.get(); }              // null: the key mean is static
  const RopeBasis* rope_basis() const { return rope_basis_.get(); }  // null: no mean before RoPE
  const kernels::KernelSet& kernels() const { return *kernels_; }

 private:
  // One block of tokens of one KV head: gathers rows minus their mean, transforms, encodes.
  struct Side;
  bool encode(const Side& side, const Rows& rows, const std::int32_t* positions,
              const std::int64_t* slots, const PlaneView& dst, int num_threads) const;
  bool encode_block(const Side& side, const Rows& rows, const std::int32_t* positions,
                    const std::int64_t* slots, const PlaneView& dst, std::int64_t first_token,
                    int kv_head) const;
  // The stored row of one token and KV head, still in the rotated basis.
  void decode_rotated(const PlaneLayout& layout, const PlaneView& src, std::int64_t slot,
                      int kv_head, float* row) const;

  int num_kv_heads_ = 0;
  PlaneLayout k_layout_, v_layout_;
  // [num_kv_heads][head_dim][head_dim]; empty: identity. query_transform_ is empty too where it
  // equals k_transform_.
  std::vector<float> k_transform_, query_transform_, v_transform_, output_transform_;
  std::vector<float> k_mean_, v_mean_;  // [num_kv_heads][head_dim]; empty: none
  std::vector<float> k_clip_, v_clip_;  // [num_kv_heads]
  std::shared_ptr<const RopeTable> rope_;
  std::shared_ptr<const RopeBasis> rope_basis_;
  const kernels::KernelSet* kernels_;
  std::shared_ptr<const methods::RowCoder> key_coder_, value_coder_;  // null: packed
};

}  // namespace oscar::cache
