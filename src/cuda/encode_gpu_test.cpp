// The encode kernel against the CPU encoder: the bytes are equal. Needs a GPU; skipped, and said
// so, without one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/encode.h"
#include "cuda/testing/device_buffer.h"
#include "kernels/kernels.h"

namespace oscar::cuda {
namespace {

using testing::DeviceBuffer;

struct EncodeCase {
  int head_dim = 128, num_kv_heads = 2;
  std::int64_t num_tokens = 200;
  QuantSpec key, value;
  float key_clip = 0.96f, value_clip = 0.92f;
  bool has_transform = true;
  unsigned seed = 1;
  bool is_hostile = false;   // zeros, constants, huge, tiny, NaN rows
  bool is_in_order = false;  // slots follow one another, from within a slab; else any

  PlaneLayout layout(int side) const { return {head_dim, side == 0 ? key : value}; }
};

std::vector<bf16_t> random_rows(const EncodeCase& c, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<bf16_t> rows(std::size_t(c.num_tokens * c.num_kv_heads * c.head_dim));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t row = i / std::size_t(c.head_dim), channel = i % std::size_t(c.head_dim);
    float x = normal(random);
    if (c.is_hostile) {
      switch (row % 9) {
        case 0: x = 0; break;
        case 1: x = -2.5f; break;
        case 2: x *= 1e37f; break;
        case 3: x *= 1e-38f; break;
        case 4: x = channel == 7 ? 1e30f : x; break;
        case 5: x = channel < 3 ? 1.0f : 0.0f; break;
        case 6: x = channel == 3 ? NAN : x; break;
        case 7: x = std::round(x); break;
        default: break;
      }
    }
    rows[i] = bf16_from_float(x);
  }
  return rows;
}

class EncodeGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  }

  void expect_equal_bytes(const EncodeCase& c) {
    std::mt19937 random(c.seed);
    const std::int64_t num_pages = (c.num_tokens + kPageTokens - 1) / kPageTokens + 2;
    const std::int64_t key_bytes = c.layout(0).plane_bytes();
    const std::int64_t run_bytes = key_bytes + c.layout(1).plane_bytes();
    std::vector<std::int64_t> slots(std::size_t(num_pages * kPageTokens));
    std::iota(slots.begin(), slots.end(), c.is_in_order ? 5 : 0);
    if (!c.is_in_order) std::shuffle(slots.begin(), slots.end(), random);
    slots.resize(std::size_t(c.num_tokens));
    if (c.num_tokens > 3) slots[3] = -1;

    EncodeParams p;
    std::vector<bf16_t> rows[2] = {random_rows(c, random), random_rows(c, random)};
    std::vector<float> matrices[2];
    DeviceBuffer<bf16_t> device_rows[2];
    DeviceBuffer<float> device_matrices[2], clips[2];
    for (int side = 0; side < 2; ++side) {
      const std::size_t size = std::size_t(c.num_kv_heads * c.head_dim * c.head_dim);
      std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(float(c.head_dim)));
      if (c.has_transform) {
        for (std::size_t i = 0; i < size; ++i) matrices[side].push_back(normal(random));
      }
      device_rows[side] = DeviceBuffer<bf16_t>(rows[side]);
      device_matrices[side] = DeviceBuffer<float>(matrices[side]);
      clips[side] = DeviceBuffer<float>(
          std::vector<float>(std::size_t(c.num_kv_heads), side == 0 ? c.key_clip : c.value_clip));
      EncodeSide& s = p.sides[side];
      s.rows = device_rows[side].data();
      s.token_stride = std::int64_t{c.num_kv_heads} * c.head_dim;
      s.head_stride = c.head_dim;
      s.transform = c.has_transform ? device_matrices[side].data() : nullptr;
      s.clip_ratio = clips[side].data();
      s.plane = device_plane(c.layout(side), side == 0 ? Side::kKey : Side::kValue);
      s.plane_offset_bytes = static_cast<std::int32_t>(side == 0 ? 0 : key_bytes);
      s.scale_fit = c.layout(side).quant.scale_fit;
    }
    DeviceBuffer<std::uint8_t> pages(std::size_t(num_pages * c.num_kv_heads * run_bytes));
    DeviceBuffer<std::int64_t> device_slots(slots);
    DeviceBuffer<std::int32_t> non_finite(std::vector<std::int32_t>{0});
    pages.fill(0xee);
    // Exact copies of every third token, in the same pass; rows that are not finite may differ.
    constexpr int kRowsPerBlock = 32;
    const bool has_copies = !c.has_transform && !c.is_hostile;
    std::vector<std::int64_t> copy_slots(std::size_t(c.num_tokens), -1);
    for (std::size_t t = 0; t < copy_slots.size(); t += 3) copy_slots[t] = std::int64_t(t / 3);
    const std::size_t copy_blocks = copy_slots.size() / 3 / kRowsPerBlock + 1;
    DeviceBuffer<std::int64_t> device_copy_slots(copy_slots);
    DeviceBuffer<bf16_t> copies(has_copies ? copy_blocks * std::size_t(c.num_kv_heads) * 2 *
                                                 kRowsPerBlock * std::size_t(c.head_dim)
                                           : 0);
    if (has_copies) {
      p.copies = copies.data();
      p.copy_slots = device_copy_slots.data();
      p.rows_per_block = kRowsPerBlock;
    }
    p.num_tokens = c.num_tokens;
    p.num_kv_heads = c.num_kv_heads;
    p.pages = pages.data();
    p.head_stride_bytes = run_bytes;
    p.page_stride_bytes = run_bytes * c.num_kv_heads;
    p.slots = device_slots.data();
    p.non_finite = non_finite.data();
    const Status status = run_encode(p, nullptr);
    ASSERT_TRUE(status.ok()) << status.message;
    testing::check(cudaDeviceSynchronize(), "encode");
    EXPECT_EQ(non_finite.download()[0], c.is_hostile);
    const std::vector<std::uint8_t> bytes = pages.download();
    for (int side = 0; side < 2; ++side) {
      for (int head = 0; head < c.num_kv_heads; ++head) {
        compare(c, side, head, rows[side], matrices[side], slots, num_pages,
                bytes.data() + head * run_bytes + (side == 0 ? 0 : key_bytes),
                run_bytes * c.num_kv_heads);
        if (HasFailure()) return;
      }
      if (has_copies) compare_copies(c, side, rows[side], copies.download(), kRowsPerBlock);
    }
  }

 private:
  static void compare_copies(const EncodeCase& c, int side, const std::vector<bf16_t>& rows,
                             const std::vector<bf16_t>& copies, int rows_per_block) {
    for (std::int64_t token = 0; token < c.num_tokens; token += 3) {
      const std::int64_t block = token / 3 / rows_per_block, row = token / 3 % rows_per_block;
      for (int head = 0; head < c.num_kv_heads; ++head) {
        const std::int64_t plane = (block * c.num_kv_heads + head) * 2 + side;
        const bf16_t* from = rows.data() + (token * c.num_kv_heads + head) * c.head_dim;
        const bf16_t* copy = copies.data() + (plane * rows_per_block + row) * c.head_dim;
        ASSERT_TRUE(std::equal(from, from + c.head_dim, copy))
            << "copy, side " << side << " token " << token << " head " << head;
      }
    }
  }
  static void compare(const EncodeCase& c, int side, int head, const std::vector<bf16_t>& rows,
                      const std::vector<float>& matrices, const std::vector<std::int64_t>& slots,
                      std::int64_t num_pages, const std::uint8_t* bytes, std::int64_t page_stride) {
    const kernels::KernelSet& cpu = kernels::selected_kernel_set();
    const PlaneLayout layout = c.layout(side);
    const std::size_t head_dim = std::size_t(c.head_dim);
    std::vector<float> raw(std::size_t(c.num_tokens) * head_dim), rotated(raw.size());
    for (std::size_t t = 0; t < std::size_t(c.num_tokens); ++t) {
      for (std::size_t d = 0; d < head_dim; ++d) {
        raw[t * head_dim + d] = bf16_to_float(
            rows[(t * std::size_t(c.num_kv_heads) + std::size_t(head)) * head_dim + d]);
      }
    }
    if (c.has_transform) {
      cpu.transform_rows({raw.data(), matrices.data() + std::size_t(head) * head_dim * head_dim,
                          rotated.data(), c.num_tokens, c.head_dim, c.head_dim, c.head_dim});
    } else {
      rotated = raw;
    }
    std::vector<std::uint8_t> truth(std::size_t(num_pages * layout.plane_bytes()), 0);
    std::vector<std::uint8_t*> planes;
    std::vector<std::int32_t> tokens;
    std::vector<bool> is_written(std::size_t(num_pages * kPageTokens));
    for (const std::int64_t slot : slots) {
      planes.push_back(slot < 0 ? nullptr
                                : truth.data() + slot / kPageTokens * layout.plane_bytes());
      tokens.push_back(static_cast<std::int32_t>(slot < 0 ? 0 : slot % kPageTokens));
      if (slot >= 0) is_written[std::size_t(slot)] = true;
    }
    cpu.encode_rows({rotated.data(), planes.data(), tokens.data(), c.num_tokens, c.head_dim, layout,
                     side == 0 ? c.key_clip : c.value_clip});
    // Tokens nobody wrote keep the device's filler; compare the others in logical order.
    std::vector<std::uint8_t> logical(std::size_t(layout.plane_bytes()));
    for (std::int64_t page = 0; page < num_pages; ++page) {
      to_logical_order(layout, side == 0 ? Side::kKey : Side::kValue, bytes + page * page_stride,
                       logical.data());
      const std::uint8_t* expected = truth.data() + page * layout.plane_bytes();
      for (std::int64_t token = 0; token < kPageTokens; ++token) {
        if (!is_written[std::size_t(page * kPageTokens + token)]) continue;
        const std::int64_t row = layout.code_row_bytes();
        ASSERT_TRUE(std::equal(expected + token * row, expected + (token + 1) * row,
                               logical.data() + token * row))
            << "codes, side " << side << " page " << page << " token " << token;
        for (int group = 0; group < layout.num_groups(); ++group) {
          const std::int64_t at = layout.scales_offset() + 2 * (group * kPageTokens + token);
          ASSERT_TRUE(std::equal(expected + at, expected + at + 2, logical.data() + at))
              << "scale, side " << side << " page " << page << " token " << token;
          if (layout.quant.codebook != Codebook::kAffine) continue;
          const std::int64_t zero = at + layout.zeros_offset() - layout.scales_offset();
          ASSERT_TRUE(std::equal(expected + zero, expected + zero + 2, logical.data() + zero))
              << "zero point, side " << side << " page " << page << " token " << token;
        }
      }
    }
  }
};

TEST_F(EncodeGpu, BytesOfEverySpec) {
  unsigned seed = 0;
  for (const int head_dim : {64, 80, 128, 256}) {
    for (const int bits : {2, 3, 4}) {
      for (const Codebook codebook : {Codebook::kAffine, Codebook::kSymmetric}) {
        for (const ScaleFit fit :
             {ScaleFit::kPlain, ScaleFit::kUnbiased, ScaleFit::kLeastSquares}) {
          for (const int group : {head_dim, 16}) {
            EncodeCase c;
            c.head_dim = head_dim;
            c.key = {bits, group, codebook, fit};
            c.value = {bits == 3 ? 2 : bits, group, codebook, fit};
            c.seed = ++seed;
            SCOPED_TRACE("seed " + std::to_string(seed));
            expect_equal_bytes(c);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(EncodeGpu, BytesOfTrellisCodes) {
  unsigned seed = 500;
  for (const int head_dim : {32, 64, 80, 128, 256}) {
    for (const ScaleFit fit : {ScaleFit::kPlain, ScaleFit::kUnbiased, ScaleFit::kLeastSquares}) {
      for (const int group : {head_dim, 16}) {
        for (const bool has_transform : {false, true}) {
          EncodeCase c;
          c.head_dim = head_dim;
          c.num_tokens = seed % 2 == 0 ? 200 : 700;
          c.key = c.value = {2, group, Codebook::kTrellis, fit};
          if (seed % 5 == 0) c.key.codebook = Codebook::kSymmetric;
          c.has_transform = has_transform;
          c.seed = ++seed;
          SCOPED_TRACE("seed " + std::to_string(seed));
          expect_equal_bytes(c);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(EncodeGpu, HostileRows) {
  unsigned seed = 1000;
  for (const Codebook codebook : {Codebook::kAffine, Codebook::kSymmetric, Codebook::kTrellis}) {
    for (const ScaleFit fit : {ScaleFit::kPlain, ScaleFit::kUnbiased, ScaleFit::kLeastSquares}) {
      for (const float clip : {0.01f, 0.5f, 0.96f, 1.0f}) {
        EncodeCase c;
        c.key = c.value = {2, 128, codebook, fit};
        c.key_clip = c.value_clip = clip;
        c.has_transform = false;
        c.is_hostile = true;
        c.seed = ++seed;
        SCOPED_TRACE("seed " + std::to_string(seed));
        expect_equal_bytes(c);
        c.num_tokens = 600;  // by the kernels of many tokens
        if (codebook == Codebook::kTrellis) expect_equal_bytes(c);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(EncodeGpu, ManyValues) {
  for (const Codebook codebook : {Codebook::kAffine, Codebook::kSymmetric, Codebook::kTrellis}) {
    EncodeCase c;
    c.num_kv_heads = 4;
    // 2 · 50000 · 4 · 128 values a case, 1e8 in all; a fifth as many of trellis codes, which take
    // the CPU longer.
    c.num_tokens = codebook == Codebook::kTrellis ? 10000 : 50000;
    c.key = {2, 128, codebook, ScaleFit::kUnbiased};
    c.value = {2, 128, codebook, ScaleFit::kPlain};
    c.has_transform = false;
    c.seed = 77;
    expect_equal_bytes(c);
  }
}

// Slots in order, as a prefill has them: whole slabs are stored at once.
TEST_F(EncodeGpu, SlotsInOrder) {
  unsigned seed = 2000;
  for (const int head_dim : {64, 128}) {
    for (const Codebook codebook : {Codebook::kAffine, Codebook::kSymmetric, Codebook::kTrellis}) {
      for (const ScaleFit fit : {ScaleFit::kPlain, ScaleFit::kUnbiased}) {
        for (const bool is_hostile : {false, true}) {
          EncodeCase c;
          c.head_dim = head_dim;
          c.num_tokens = 5001;
          c.key = c.value = {2, head_dim, codebook, fit};
          c.has_transform = false;
          c.is_in_order = true;
          c.is_hostile = is_hostile;
          c.seed = ++seed;
          SCOPED_TRACE("seed " + std::to_string(seed));
          expect_equal_bytes(c);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// A token's bytes do not depend on what is encoded beside it.
TEST_F(EncodeGpu, OneTokenAlone) {
  EncodeCase c;
  c.num_tokens = 1;
  expect_equal_bytes(c);
  c.num_tokens = 33;
  expect_equal_bytes(c);
}

}  // namespace
}  // namespace oscar::cuda
