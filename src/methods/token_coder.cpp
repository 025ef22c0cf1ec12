#include "methods/token_coder.h"

#include <algorithm>
#include <array>

#include "methods/bits.h"

namespace oscar::methods {

int channels_per_group(int wanted, int head_dim) {
  int group =
      std::max(kGroupMultiple, std::min(wanted, head_dim) / kGroupMultiple * kGroupMultiple);
  while (head_dim % group != 0) group -= kGroupMultiple;
  return group;
}

TokenCoder::TokenCoder(const CoderInput& input, ZeroPoint zero_point, int group_channels)
    : RowCoder(input.num_kv_heads, input.head_dim, 1),
      zero_point_(zero_point),
      bits_(input.quant.bits),
      group_channels_(group_channels),
      num_groups_(input.head_dim / group_channels),
      head_bytes_(packed_bytes(input.head_dim, input.quant.bits) + num_groups_ * kAffineBytes),
      clip_(input.clip.begin(), input.clip.end()) {
  clip_.resize(static_cast<std::size_t>(input.num_kv_heads), 1.0f);
}

std::int64_t TokenCoder::encode(const float* rows, const std::int32_t*, int,
                                std::uint8_t* group) const {
  std::array<std::uint8_t, kMaxTokenHead> codes;
  for (int head = 0; head < num_kv_heads(); ++head) {
    const float* const row = rows + std::int64_t{head} * head_dim();
    std::uint8_t* const dst = group + head * head_bytes_;
    std::uint8_t* scales = dst + packed_bytes(head_dim(), bits_);
    for (int first = 0; first < head_dim(); first += group_channels_) {
      const auto [min, max] = std::minmax_element(row + first, row + first + group_channels_);
      const Affine affine(zero_point_, bits_, *min * clip_[head], *max * clip_[head]);
      for (int i = first; i < first + group_channels_; ++i) codes[i] = affine.code(row[i]);
      affine.store(scales);
      scales += kAffineBytes;
    }
    pack_codes(codes.data(), head_dim(), bits_, dst);
  }
  return group_bytes();
}

void TokenCoder::decode(const std::uint8_t* group, const std::int32_t*, int, int,
                        float* rows) const {
  std::array<std::uint8_t, kMaxTokenHead> codes;
  for (int head = 0; head < num_kv_heads(); ++head) {
    const std::uint8_t* const src = group + head * head_bytes_;
    const std::uint8_t* scales = src + packed_bytes(head_dim(), bits_);
    unpack_codes(src, head_dim(), bits_, codes.data());
    float* const row = rows + std::int64_t{head} * head_dim();
    for (int first = 0; first < head_dim(); first += group_channels_) {
      const StoredAffine affine = load_affine(scales);
      scales += kAffineBytes;
      for (int i = first; i < first + group_channels_; ++i) row[i] = affine.value(codes[i]);
    }
  }
}

std::unique_ptr<RowCoder> make_minimum_token_coder(const CoderInput& input) {
  return std::make_unique<TokenCoder>(input, ZeroPoint::kMinimum,
                                      channels_per_group(input.quant.group_size, input.head_dim));
}

std::unique_ptr<RowCoder> make_integer_token_coder(const CoderInput& input) {
  return std::make_unique<TokenCoder>(input, ZeroPoint::kInteger,
                                      channels_per_group(input.quant.group_size, input.head_dim));
}

}  // namespace oscar::methods
