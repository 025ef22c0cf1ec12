#include "methods/channel_coder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "methods/bits.h"

namespace oscar::methods {

ChannelCoder::ChannelCoder(const CoderInput& input, ZeroPoint zero_point)
    : RowCoder(input.num_kv_heads, input.head_dim, input.quant.group_size),
      zero_point_(zero_point),
      bits_(input.quant.bits) {}

std::int64_t ChannelCoder::code_row_bytes() const { return packed_bytes(row_values(), bits_); }

std::int64_t ChannelCoder::group_bytes() const {
  return group_tokens() * code_row_bytes() + row_values() * kAffineBytes;
}

std::int64_t ChannelCoder::encode(const float* rows, const std::int32_t*, int count,
                                  std::uint8_t* group) const {
  const std::int64_t width = row_values();
  std::uint8_t* const scales = group + group_tokens() * code_row_bytes();
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(group_tokens() * width), 0);
  for (std::int64_t channel = 0; channel < width; ++channel) {
    float min = rows[channel], max = rows[channel];
    for (int token = 1; token < count; ++token) {
      min = std::min(min, rows[token * width + channel]);
      max = std::max(max, rows[token * width + channel]);
    }
    const Affine affine(zero_point_, bits_, min, max);
    affine.store(scales + channel * kAffineBytes);
    for (int token = 0; token < count; ++token) {
      codes[static_cast<std::size_t>(token * width + channel)] =
          affine.code(rows[token * width + channel]);
    }
  }
  pack_codes(codes.data(), group_tokens() * width, bits_, group);
  return group_bytes();
}

void ChannelCoder::decode(const std::uint8_t* group, const std::int32_t*, int first, int count,
                          float* rows) const {
  const std::int64_t width = row_values();
  const std::uint8_t* const scales = group + group_tokens() * code_row_bytes();
  std::array<StoredAffine, kMaxHeadDim> affine;
  std::array<std::uint8_t, kMaxHeadDim> codes;
  for (int head = 0; head < num_kv_heads(); ++head) {
    const std::int64_t begin = std::int64_t{head} * head_dim();
    for (int i = 0; i < head_dim(); ++i)
      affine[i] = load_affine(scales + (begin + i) * kAffineBytes);
    for (int token = 0; token < count; ++token) {
      unpack_codes(group + (first + token) * code_row_bytes() + packed_bytes(begin, bits_),
                   head_dim(), bits_, codes.data());
      float* const row = rows + token * width + begin;
      for (int i = 0; i < head_dim(); ++i) row[i] = affine[i].value(codes[i]);
    }
  }
}

}  // namespace oscar::methods
