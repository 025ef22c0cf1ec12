#include "cuda/device_layout.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "cuda/sm90/prefill/config.h"

namespace oscar::cuda {
namespace {

std::vector<PlaneLayout> all_layouts() {
  std::vector<PlaneLayout> layouts;
  for (const int head_dim : {32, 64, 80, 96, 128, 256}) {
    for (const int bits : {2, 3, 4}) {
      for (const Codebook codebook : {Codebook::kAffine, Codebook::kSymmetric}) {
        layouts.push_back({head_dim, {bits, head_dim, codebook}});
        layouts.push_back({head_dim, {bits, 16, codebook}});
      }
    }
    layouts.push_back({head_dim, {2, head_dim, Codebook::kTrellis}});
    layouts.push_back({head_dim, {2, 16, Codebook::kTrellis}});
  }
  return layouts;
}

std::string name_of(const PlaneLayout& layout, Side side) {
  return std::string(side == Side::kKey ? "key" : "value") + " d" +
         std::to_string(layout.head_dim) + " bits " + std::to_string(layout.quant.bits) + " " +
         codebook_name(layout.quant.codebook) + " group " + std::to_string(layout.quant.group_size);
}

// Every bit of the plane belongs to exactly one code bit or metadata bit.
void expect_bijection(const PlaneLayout& layout, Side side) {
  const DevicePlane plane = device_plane(layout, side);
  ASSERT_EQ(plane.plane_bytes(), layout.plane_bytes());
  std::vector<int> uses(static_cast<std::size_t>(plane.plane_bytes()) * 8);
  const auto use = [&](int byte, int first_bit, int num_bits) {
    for (int bit = first_bit; bit < first_bit + num_bits; ++bit) ++uses.at(byte * 8 + bit);
  };
  for (int token = 0; token < kPageTokens; ++token) {
    for (int channel = 0; channel < plane.head_dim; ++channel) {
      const CodePlace low = plane.low(token, channel);
      use(low.byte, low.shift, plane.low_bits());
      if (plane.bits != 3) continue;
      const CodePlace high = plane.high(token, channel);
      use(high.byte, high.shift, 1);
    }
    for (int group = 0; group < plane.num_groups(); ++group) {
      use(plane.scale_offset(group, token), 0, 16);
      if (plane.affine) use(plane.zero_offset(group, token), 0, 16);
    }
  }
  for (std::size_t bit = 0; bit < uses.size(); ++bit) ASSERT_EQ(uses[bit], 1) << "bit " << bit;
}

// Kernels compose byte k of a token from the channels first_channel(k), + stride, …
void expect_bytes_of_one_token(const PlaneLayout& layout, Side side) {
  const DevicePlane plane = device_plane(layout, side);
  for (int token = 0; token < kPageTokens; ++token) {
    for (int k = 0; k < plane.low_bytes_per_token(); ++k) {
      const int first = plane.first_channel(k, plane.low_stride(), plane.codes_per_byte());
      const CodePlace start = plane.low(token, first);
      for (int i = 0; i < plane.codes_per_byte(); ++i) {
        const CodePlace place = plane.low(token, first + i * plane.low_stride());
        ASSERT_EQ(place.byte, start.byte);
        ASSERT_EQ(place.shift, i * plane.low_bits());
      }
    }
    for (int k = 0; k < plane.high_bytes_per_token(); ++k) {
      const int first = plane.first_channel(k, plane.high_stride(), 8);
      const CodePlace start = plane.high(token, first);
      for (int i = 0; i < 8; ++i) {
        const CodePlace place = plane.high(token, first + i * plane.high_stride());
        ASSERT_EQ(place.byte, start.byte);
        ASSERT_EQ(place.shift, i);
      }
    }
  }
}

TEST(DeviceLayout, IsABijectionOfTheLogicalPlane) {
  for (const PlaneLayout& layout : all_layouts()) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      SCOPED_TRACE(name_of(layout, side));
      expect_bijection(layout, side);
      expect_bytes_of_one_token(layout, side);
    }
  }
}

TEST(DeviceLayout, LogicalOrderComesBack) {
  std::mt19937 random(7);
  for (const PlaneLayout& layout : all_layouts()) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      SCOPED_TRACE(name_of(layout, side));
      std::vector<std::uint8_t> logical(layout.plane_bytes());
      for (std::uint8_t& byte : logical) byte = static_cast<std::uint8_t>(random());
      std::vector<std::uint8_t> device(logical.size(), 0xee), back(logical.size(), 0xee);
      to_device_order(layout, side, logical.data(), device.data());
      to_logical_order(layout, side, device.data(), back.data());
      EXPECT_EQ(back, logical);
      const DevicePlane plane = device_plane(layout, side);
      EXPECT_EQ(device == logical, !plane.permuted);
    }
  }
}

TEST(DeviceLayout, FastShapesArePermuted) {
  for (const int head_dim : {64, 128, 256}) {
    for (const int bits : {2, 3, 4}) {
      const PlaneLayout layout{head_dim, {bits, 64, Codebook::kAffine}};
      EXPECT_TRUE(device_plane(layout, Side::kKey).permuted);
      EXPECT_EQ(device_plane(layout, Side::kValue).permuted, bits != 3);
    }
  }
  EXPECT_FALSE(device_plane({96, {2, 96}}, Side::kKey).permuted);
}

// A word is four bytes in order, aligned, and its levels are those of the definition.
TEST(DeviceLayout, TrellisWordsStayWhole) {
  std::mt19937 random(11);
  for (const int head_dim : {32, 64, 80, 128, 256}) {
    const PlaneLayout layout{head_dim, {2, head_dim, Codebook::kTrellis}};
    std::vector<std::uint8_t> logical(layout.plane_bytes()), device(logical.size());
    for (std::uint8_t& byte : logical) byte = static_cast<std::uint8_t>(random());
    for (const Side side : {Side::kKey, Side::kValue}) {
      SCOPED_TRACE(name_of(layout, side));
      const DevicePlane plane = device_plane(layout, side);
      EXPECT_TRUE(plane.trellis);
      EXPECT_EQ(plane.permuted, head_dim != 32 && head_dim != 80);
      to_device_order(layout, side, logical.data(), device.data());
      for (int token = 0; token < kPageTokens; ++token) {
        const auto code = [&](int word, int t) {
          const int channel = 16 * word + (t + 16) % 16;
          const int at = token * head_dim / 4 + channel / 4;
          return logical[static_cast<std::size_t>(at)] >> 2 * (channel % 4) & 3;
        };
        for (int word = 0; word < head_dim / 16; ++word) {
          const int at = plane.trellis_word(token, word);
          ASSERT_EQ(at % 4, 0);
          for (int t = 0; t < 16; ++t) {
            ASSERT_EQ(plane.low(token, 16 * word + t).byte, at + t / 4);
            ASSERT_EQ(plane.low(token, 16 * word + t).shift, 2 * (t % 4));
            const int level = 4 * (code(word, t) >> 1) +
                              2 * ((code(word, t) ^ code(word, t - 2)) & 1) +
                              (code(word, t - 1) & 1);
            ASSERT_EQ(plane.trellis_level(device.data(), token, 16 * word + t), level);
          }
        }
      }
    }
  }
}

TEST(DeviceLayout, RefusesExactSides) {
  EXPECT_THROW(device_plane({64, {16, 64}}, Side::kKey), Error);
}

// The prefill kernel's operands: every channel once, codes at the bits that the plane has them at;
// columns and tokens are permutations of one another.
template <int kHeadDim, int kKeyBits, int kValueBits>
void expect_operands_of() {
  using C = sm90::PrefillConfig<kHeadDim, kKeyBits, kValueBits>;
  const DevicePlane key = device_plane({kHeadDim, {kKeyBits, kHeadDim}}, Side::kKey);
  const DevicePlane value = device_plane({kHeadDim, {kValueBits, kHeadDim}}, Side::kValue);
  std::vector<int> seen(kHeadDim);
  for (int at = 0; at < kHeadDim; ++at) {
    const sm90::KeyElement element = sm90::key_element<C>(at);
    ++seen.at(std::size_t(element.channel));
    EXPECT_EQ(element.shift, key.low(5, element.channel).shift) << kHeadDim << " " << at;
    EXPECT_EQ(C::value_shift(at), value.low(5, at).shift) << kHeadDim << " " << at;
  }
  EXPECT_EQ(seen, std::vector<int>(kHeadDim, 1));
}

// Of trellis codes: every channel once, levels in the lower and the upper half byte of their byte.
template <int kHeadDim>
void expect_trellis_operands_of() {
  using C = sm90::PrefillConfig<kHeadDim, 2, 2, false, true>;
  std::vector<int> keys(kHeadDim), values(kHeadDim);
  for (int at = 0; at < kHeadDim; ++at) {
    const sm90::KeyElement element = sm90::key_element<C>(at);
    ++keys.at(std::size_t(element.channel));
    EXPECT_EQ(element.shift, element.channel % 4 / 2 * 4);
    const int channel = trellis_value_channel(kHeadDim, at);
    ++values.at(std::size_t(channel));
    EXPECT_EQ(C::value_position(channel), at);
    EXPECT_EQ(C::value_shift(at), channel % 4 / 2 * 4);
  }
  EXPECT_EQ(keys, std::vector<int>(kHeadDim, 1));
  EXPECT_EQ(values, std::vector<int>(kHeadDim, 1));
}

TEST(DeviceLayout, PrefillOperandsOfTrellisCodes) {
#define OSCAR_HOPPER_PREFILL_TRELLIS(d) expect_trellis_operands_of<d>();
#include "cuda/sm90/prefill/kernels_trellis.inc"
  for (int position = 0; position < 256; ++position) {
    EXPECT_EQ(trellis_value_position(256, trellis_value_channel(256, position)), position);
  }
}

TEST(DeviceLayout, PrefillOperandsAreWhereThePlaneHasThem) {
#define OSCAR_HOPPER_PREFILL(d, k, v) expect_operands_of<d, k, v>();
#include "cuda/sm90/prefill/kernels.inc"
  for (int token = 0; token < kPageTokens; ++token) {
    EXPECT_EQ(sm90::token_of_column(sm90::column_of_token(token)), token);
    EXPECT_EQ(sm90::column_of_token(sm90::token_of_column(token)), token);
  }
}

}  // namespace
}  // namespace oscar::cuda
