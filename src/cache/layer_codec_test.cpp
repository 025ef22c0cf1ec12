#include "cache/layer_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/aligned_buffer.h"
#include "base/error.h"
#include "cache/test_artefact.h"

namespace oscar::cache::test {
namespace {

constexpr std::int32_t kMaxPosition = 4096;

// Both sides of num_tokens tokens in slots 0, 1, ...
struct Store {
  AlignedBuffer<std::uint8_t> k_bytes, v_bytes;
  PlaneView k, v;

  Store(const LayerCodec& codec, std::int64_t num_tokens) {
    const std::int64_t num_pages = (num_tokens + kPageSize - 1) / kPageSize;
    const auto view = [&](const PlaneLayout& layout, AlignedBuffer<std::uint8_t>* bytes) {
      *bytes = AlignedBuffer<std::uint8_t>(num_pages * codec.num_kv_heads() * layout.plane_bytes());
      return PlaneView{bytes->data(), codec.num_kv_heads() * layout.plane_bytes(),
                       layout.plane_bytes(), layout};
    };
    k = view(codec.k_layout(), &k_bytes);
    v = view(codec.v_layout(), &v_bytes);
  }
  bool operator==(const Store& other) const {
    return std::equal(k_bytes.begin(), k_bytes.end(), other.k_bytes.begin(), other.k_bytes.end()) &&
           std::equal(v_bytes.begin(), v_bytes.end(), other.v_bytes.begin(), other.v_bytes.end());
  }
};

Rows rows_of(const std::vector<float>& data, const PlaneLayout& layout, int num_kv_heads) {
  const std::int64_t width = std::int64_t{num_kv_heads} * layout.head_dim;
  return {data.data(), std::ssize(data) / width, width, layout.head_dim};
}

// Encodes in chunks of `chunk` tokens at positions 0, 1, ...
Store encode(const LayerCodec& codec, const std::vector<float>& keys,
             const std::vector<float>& values, std::int64_t chunk, int num_threads) {
  const Rows k = rows_of(keys, codec.k_layout(), codec.num_kv_heads());
  const Rows v = rows_of(values, codec.v_layout(), codec.num_kv_heads());
  Store store(codec, k.num_tokens);
  std::vector<std::int32_t> positions(k.num_tokens);
  std::vector<std::int64_t> slots(k.num_tokens);
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(slots.begin(), slots.end(), 0);
  for (std::int64_t first = 0; first < k.num_tokens; first += chunk) {
    const std::int64_t count = std::min(chunk, k.num_tokens - first);
    EXPECT_TRUE(
        codec.encode_keys({k.data + first * k.token_stride, count, k.token_stride, k.head_stride},
                          positions.data() + first, slots.data() + first, store.k, num_threads));
    EXPECT_TRUE(
        codec.encode_values({v.data + first * v.token_stride, count, v.token_stride, v.head_stride},
                            slots.data() + first, store.v, num_threads));
  }
  return store;
}

std::string refusal(const Artefact& artefact, std::shared_ptr<const RopeTable> rope) {
  try {
    LayerCodec(artefact, artefact.layers.front(), std::move(rope), kernels::selected_kernel_set());
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LayerCodec, BytesDoNotDependOnChunksThreadsOrKernels) {
  constexpr std::int64_t kTokens = 600;
  for (const int bits : {2, 3, 4, 16}) {
    for (const auto codebook : {Codebook::kAffine, Codebook::kSymmetric, Codebook::kTrellis}) {
      if (codebook == Codebook::kTrellis && bits != 2) continue;
      LayerSpec spec{.k_quant = {bits, 64, codebook, ScaleFit::kUnbiased},
                     .v_quant = {bits, 32, codebook, ScaleFit::kLeastSquares},
                     .head_dim_v = 96};
      Generator generator(7);
      const std::vector<float> keys =
          gaussian(kTokens * spec.num_kv_heads * spec.head_dim_k, 1.0f, &generator);
      const std::vector<float> values =
          gaussian(kTokens * spec.num_kv_heads * spec.head_dim_v, 1.0f, &generator);
      const LayerCodec scalar =
          make_codec(spec, kMaxPosition, kernels::kernel_set_by_name("scalar"));
      const Store whole = encode(scalar, keys, values, kTokens, 1);
      for (const kernels::KernelSet* set : kernels::all_kernel_sets()) {
        if (!set->supported()) continue;
        const LayerCodec codec = make_codec(spec, kMaxPosition, *set);
        const auto expect_same = [&](std::int64_t chunk, int num_threads) {
          EXPECT_TRUE(encode(codec, keys, values, chunk, num_threads) == whole)
              << set->name << ", " << bits << " bits, chunks of " << chunk << ", " << num_threads
              << " threads";
        };
        for (const std::int64_t chunk : {1, 7, 64, 512, 600}) expect_same(chunk, 1);
        for (const int num_threads : {2, 5}) expect_same(512, num_threads);
      }
    }
  }
}

// Two KV heads with equal keys and the transforms I and a shift by one channel: equal codes,
// shifted by one.
TEST(LayerCodec, EveryHeadHasItsOwnTransform) {
  constexpr int kDim = 64;
  for (const int bits : {2, 4}) {
    Artefact artefact = make_artefact(
        {.k_quant = {bits, kDim}, .transform = Transform::kIdentity, .mean = Mean::kNone}, 1);
    ArtefactLayer& layer = artefact.layers.front();
    layer.k_transform.resize(kDim * kDim);
    for (int i = 0; i < kDim; ++i) layer.k_transform[i * kDim + i] = 1.0f;
    const std::vector<float> shift = cyclic_shift(kDim);
    layer.k_transform.insert(layer.k_transform.end(), shift.begin(), shift.end());
    const LayerCodec codec(artefact, layer, nullptr, kernels::selected_kernel_set());
    std::vector<float> keys(2 * kDim);
    for (int d = 0; d < 2 * kDim; ++d) keys[d] = static_cast<float>(d % kDim);
    const Store store = encode(codec, keys, keys, 1, 1);
    const auto code = [&](int head, int channel) {
      const int codes_a_byte = 8 / bits;
      return store.k.plane(0, head)[channel / codes_a_byte] >> (channel % codes_a_byte * bits) &
             ((1 << bits) - 1);
    };
    EXPECT_EQ(code(0, 0), 0);
    EXPECT_EQ(code(0, kDim - 1), (1 << bits) - 1);
    for (int d = 0; d < kDim; ++d)
      EXPECT_EQ(code(1, (d + 1) % kDim), code(0, d)) << "channel " << d;
  }
}

// With 4 bits and no clip a decoded value lies within half a step of the rotated row, so the row
// within half a step times √d; the step is at most range/15 and the BF16 scale and zero add 2⁻⁸ of
// the range. The inverse stretches by at most 2 (its smoothing).
TEST(LayerCodec, DecodedRowsAreNearTheRaw) {
  for (const auto transform : {Transform::kIdentity, Transform::kHadamard, Transform::kCyclicShift,
                               Transform::kRandomOrthogonal, Transform::kNonOrthogonal}) {
    for (const auto mean : {Mean::kNone, Mean::kStatic, Mean::kHalfSplit, Mean::kInterleaved,
                            Mean::kPartialRotation}) {
      const LayerSpec spec{.k_quant = {4, 64},
                           .v_quant = {4, 64},
                           .transform = transform,
                           .mean = mean,
                           .k_clip = 1.0f,
                           .v_clip = 1.0f};
      const LayerCodec codec = make_codec(spec, kMaxPosition, kernels::selected_kernel_set());
      Generator generator(3);
      const std::vector<float> keys = gaussian(100 * 128, 1.0f, &generator),
                               values = gaussian(100 * 128, 1.0f, &generator);
      const Store store = encode(codec, keys, values, 100, 1);
      // Keys here are not centred on the turned mean, so the stored range holds it: norms of key
      // and mean bound the range.
      std::vector<float> decoded(128);
      for (std::int64_t token = 0; token < 100; ++token) {
        for (const bool is_key : {true, false}) {
          is_key
              ? codec.decode_key(token, static_cast<std::int32_t>(token), store.k, decoded.data())
              : codec.decode_value(token, store.v, decoded.data());
          const std::vector<float>& raw = is_key ? keys : values;
          for (int head = 0; head < 2; ++head) {
            const float* const row = raw.data() + token * 128 + head * 64;
            const float* const offset = is_key ? codec.key_mean(head) : codec.value_mean(head);
            double norm = 0, offset_norm = 0, error = 0;
            for (int d = 0; d < 64; ++d) {
              norm += row[d] * row[d];
              offset_norm += offset == nullptr ? 0 : offset[d] * offset[d];
              error += std::pow(decoded[head * 64 + d] - row[d], 2);
            }
            const double stretch = transform == Transform::kNonOrthogonal ? 2 : 1;
            const double range = 2 * stretch * (std::sqrt(norm) + 1.1 * std::sqrt(offset_norm));
            EXPECT_LE(std::sqrt(error), stretch * std::sqrt(64.0) * range * (0.5 / 15 + 1.0 / 256));
          }
        }
      }
    }
  }
}

// A key that is nothing but the mean, turned to its position, is stored as zeros and decodes to
// itself.
TEST(LayerCodec, KeyMeanIsTurnedToThePosition) {
  for (const auto mean : {Mean::kHalfSplit, Mean::kInterleaved, Mean::kPartialRotation}) {
    const LayerSpec spec{.k_quant = {2, 64}, .v_quant = {2, 64}, .mean = mean};
    const LayerCodec codec = make_codec(spec, kMaxPosition, kernels::selected_kernel_set());
    for (const std::int32_t position : {0, 1, 63, 64, 1000, 4095}) {
      std::vector<float> key(128), decoded(128);
      for (int head = 0; head < 2; ++head) {
        std::copy_n(codec.key_mean(head), 64, key.data() + head * 64);
        codec.rope()->rotate(key.data() + head * 64, position);
      }
      Store store(codec, 1);
      const std::int64_t slot = 0;
      ASSERT_TRUE(
          codec.encode_keys(rows_of(key, codec.k_layout(), 2), &position, &slot, store.k, 1));
      EXPECT_TRUE(std::all_of(store.k_bytes.begin(), store.k_bytes.end(),
                              [](std::uint8_t byte) { return byte == 0; }));
      codec.decode_key(0, position, store.k, decoded.data());
      EXPECT_EQ(decoded, key);
    }
  }
}

TEST(LayerCodec, SixteenBitsKeepTheRawRow) {
  const LayerSpec spec{.k_quant = {.bits = 16}, .v_quant = {.bits = 16}};
  const LayerCodec codec = make_codec(spec, kMaxPosition, kernels::selected_kernel_set());
  for (int head = 0; head < 2; ++head) {
    EXPECT_EQ(codec.query_transform(head), nullptr);
    EXPECT_EQ(codec.output_transform(head), nullptr);
    EXPECT_EQ(codec.key_mean(head), nullptr);
    EXPECT_EQ(codec.value_mean(head), nullptr);
  }
  Generator generator(5);
  const std::vector<float> rows = gaussian(70 * 128, 1.0f, &generator);
  const Store store = encode(codec, rows, rows, 70, 1);
  std::vector<float> key(128), value(128);
  for (std::int64_t token = 0; token < 70; ++token) {
    codec.decode_key(token, 0, store.k, key.data());
    codec.decode_value(token, store.v, value.data());
    for (int d = 0; d < 128; ++d) {
      EXPECT_EQ(key[d], bf16_to_float(bf16_from_float(rows[token * 128 + d])));
      EXPECT_EQ(value[d], key[d]);
    }
  }
}

TEST(LayerCodec, NonFiniteRowsBecomeZerosAndAreReported) {
  for (const int bits : {2, 16}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      const LayerSpec spec{.k_quant = {bits, 64}, .v_quant = {bits, 64}, .mean = Mean::kNone};
      const LayerCodec codec = make_codec(spec, kMaxPosition, kernels::selected_kernel_set());
      Generator generator(6);
      std::vector<float> rows = gaussian(20 * 128, 1.0f, &generator);
      rows[5 * 128 + 64 + 3] = bad;
      Store store(codec, 20);
      std::vector<std::int32_t> positions(20, 0);
      std::vector<std::int64_t> slots(20);
      std::iota(slots.begin(), slots.end(), 0);
      EXPECT_FALSE(codec.encode_keys(rows_of(rows, codec.k_layout(), 2), positions.data(),
                                     slots.data(), store.k, 2));
      EXPECT_FALSE(
          codec.encode_values(rows_of(rows, codec.v_layout(), 2), slots.data(), store.v, 2));
      std::vector<float> decoded(128);
      for (std::int64_t token = 0; token < 20; ++token) {
        codec.decode_value(token, store.v, decoded.data());
        for (int head = 0; head < 2; ++head) {
          const bool zero =
              std::all_of(decoded.begin() + head * 64, decoded.begin() + head * 64 + 64,
                          [](float x) { return x == 0.0f; });
          EXPECT_EQ(zero, token == 5 && head == 1) << "token " << token << " head " << head;
        }
      }
    }
  }
}

TEST(LayerCodec, SkippedTokensTouchNothing) {
  const LayerCodec codec = make_codec({.k_quant = {2, 64}, .v_quant = {2, 64}}, kMaxPosition,
                                      kernels::selected_kernel_set());
  Generator generator(8);
  std::vector<float> rows = gaussian(3 * 128, 1.0f, &generator);
  rows[128] = std::numeric_limits<float>::quiet_NaN();  // of the token that is skipped
  Store skipping(codec, 3), two(codec, 3);
  const std::vector<std::int32_t> positions{0, -1, 2};
  EXPECT_TRUE(codec.encode_keys(rows_of(rows, codec.k_layout(), 2), positions.data(),
                                std::vector<std::int64_t>{0, -1, 2}.data(), skipping.k, 1));
  for (const std::int64_t token : {0, 2}) {
    EXPECT_TRUE(codec.encode_keys({rows.data() + token * 128, 1, 128, 64}, &positions[token],
                                  &token, two.k, 1));
  }
  EXPECT_TRUE(skipping == two);
}

TEST(LayerCodec, GroupIsLoweredToADivisorOfTheHeadSize) {
  for (const auto& [asked, dim, group] : {std::tuple{128, 64, 64},
                                          {128, 80, 80},
                                          {128, 192, 96},
                                          {64, 96, 48},
                                          {128, 256, 128},
                                          {32, 112, 16}}) {
    const LayerCodec codec = make_codec({.k_quant = {2, asked},
                                         .v_quant = {2, asked},
                                         .mean = Mean::kNone,
                                         .head_dim_k = dim,
                                         .head_dim_v = dim},
                                        kMaxPosition, kernels::selected_kernel_set());
    EXPECT_EQ(codec.k_layout().quant.group_size, group) << asked << " of " << dim;
    EXPECT_EQ(codec.v_layout().quant.group_size, group) << asked << " of " << dim;
  }
}

// Bits of a layer's own count, with that many bits' clip; the bytes are those of an artefact with
// these bits everywhere.
TEST(LayerCodec, TakesTheBitsOfTheLayer) {
  const LayerSpec spec{.k_quant = {2, 64}, .v_quant = {2, 64}, .mean = Mean::kNone};
  Artefact artefact = make_artefact(spec, 2);
  artefact.layers[1].k_bits = 4;
  artefact.layers[1].v_bits = 3;
  artefact.layers[1].k_clip[clip_index(4)] = {0.9f, 0.8f};
  Artefact uniform = artefact;
  uniform.k_quant.bits = 4;
  uniform.v_quant.bits = 3;
  uniform.layers[1].k_bits = uniform.layers[1].v_bits = 0;
  const auto codec = [](const Artefact& from, int layer) {
    return LayerCodec(from, from.layers[static_cast<std::size_t>(layer)], nullptr,
                      kernels::selected_kernel_set());
  };
  EXPECT_EQ(codec(artefact, 0).k_layout().quant.bits, 2);
  EXPECT_EQ(codec(artefact, 1).k_layout().quant.bits, 4);
  EXPECT_EQ(codec(artefact, 1).v_layout().quant.bits, 3);
  EXPECT_EQ(codec(artefact, 1).key_clip()[1], 0.8f);
  Generator generator(9);
  const std::vector<float> keys = gaussian(20 * 128, 1, &generator);
  const std::vector<float> values = gaussian(20 * 128, 1, &generator);
  EXPECT_TRUE(encode(codec(artefact, 1), keys, values, 20, 1) ==
              encode(codec(uniform, 1), keys, values, 20, 1));
}

TEST(LayerCodec, RefusesWhatDoesNotFitByName) {
  const LayerSpec spec{.k_quant = {2, 64}, .v_quant = {2, 64}, .head_dim_k = 80, .head_dim_v = 80};
  Artefact wrong_matrix = make_artefact(spec, 1);
  wrong_matrix.layers.front().k_transform.assign(2 * 128 * 128, 0.0f);
  EXPECT_EQ(refusal(wrong_matrix, make_rope(wrong_matrix, 10)),
            "layer 0: k_transform has 32768 values; its shape needs 12800");
  const Artefact no_table = make_artefact(spec, 1);
  EXPECT_EQ(refusal(no_table, nullptr),
            "layer 0: its key mean is from before RoPE, but no RoPE table was given");
  Artefact too_large =
      make_artefact({.transform = Transform::kIdentity, .mean = Mean::kNone, .head_dim_k = 512}, 1);
  const std::string message = refusal(too_large, nullptr);
  EXPECT_NE(message.find("512"), std::string::npos) << message;
  EXPECT_NE(message.find("256"), std::string::npos) << message;
}

}  // namespace
}  // namespace oscar::cache::test
