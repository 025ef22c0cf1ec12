#include "eval/self_test.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "base/aligned_buffer.h"
#include "eval/synthetic_layer.h"
#include "reference/codec.h"

namespace oscar::eval {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr float kClip = 0.92f;
// Values whose code is a tie in exact arithmetic may fall to either side.
constexpr double kMaxOtherCodes = 0.01;
// Trellis codes: a tie changes a path of several codes, which is then as near to the row.
constexpr double kMaxOtherPath = 1.001;
// As the tests of attention have them: query rows in bytes and weights in 16 bits, or single
// precision. A broken kernel is wrong by about the output itself.
constexpr double kMaxIntegerError = 0.02, kMaxFloatError = 0.001;

std::string text_of(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string layout_text(const PlaneLayout& layout) {
  return std::to_string(layout.quant.bits) + " bits, " + codebook_name(layout.quant.codebook) +
         ", head size " + std::to_string(layout.head_dim);
}

double squared_distance(std::span<const float> row, const std::vector<double>& other) {
  double sum = 0;
  for (std::size_t c = 0; c < row.size(); ++c) {
    sum += std::pow(static_cast<double>(row[c]) - other[c], 2);
  }
  return sum;
}

struct CodecTally {
  std::size_t num_codes = 0, num_other = 0;
};

// "" when every row of the page is what the reference makes of it, but for ties.
std::string check_page(const kernels::KernelSet& kernels, const PlaneLayout& layout,
                       std::mt19937_64* generator, CodecTally* tally) {
  const bool trellis = layout.quant.codebook == Codebook::kTrellis;
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<std::size_t>(kPageSize * layout.head_dim));
  for (float& value : rows) value = normal(*generator);
  AlignedBuffer<std::uint8_t> plane(static_cast<std::uint64_t>(layout.plane_bytes()));
  std::vector<std::uint8_t*> planes(kPageSize, plane.data());
  std::vector<std::int32_t> tokens(kPageSize);
  for (int i = 0; i < kPageSize; ++i) tokens[i] = i;
  const bool finite = kernels.encode_rows(
      {rows.data(), planes.data(), tokens.data(), kPageSize, layout.head_dim, layout, kClip});
  if (!finite) return layout_text(layout) + ": finite rows were taken for NaN";
  std::vector<float> decoded(rows.size());
  kernels.decode_rows({plane.data(), decoded.data(), layout.head_dim, 0, kPageSize, layout});
  // The reference tries all 65,536 paths of a word: two tokens of trellis codes take as long as a
  // page of the others.
  const int step = trellis ? kPageSize / 2 : 1;
  for (int token = 0; token < kPageSize; token += step) {
    const std::span<const float> row(rows.data() + token * layout.head_dim,
                                     static_cast<std::size_t>(layout.head_dim));
    const reference::Row right = reference::encode(row, layout, kClip);
    const reference::Row stored = reference::read_row(plane.data(), layout, token);
    const std::vector<double> meaning = reference::decode(stored, layout);
    for (int c = 0; c < layout.head_dim; ++c) {
      const auto where = [&] {
        return layout_text(layout) + ": token " + std::to_string(token) + ", channel " +
               std::to_string(c);
      };
      const double value = static_cast<double>(decoded[token * layout.head_dim + c]);
      // Single precision: two roundings of a product of 24-bit numbers.
      if (std::abs(value - meaning[c]) > std::abs(meaning[c]) * 0x1p-22 + 0x1p-120) {
        return where() + " decodes to " + text_of("%.8g", value) + " instead of " +
               text_of("%.8g", meaning[c]);
      }
      ++tally->num_codes;
      if (stored.codes[c] == right.codes[c]) continue;
      ++tally->num_other;
      if (!trellis && std::abs(stored.codes[c] - right.codes[c]) > 1) {
        return where() + " has code " + std::to_string(stored.codes[c]) + " instead of " +
               std::to_string(right.codes[c]);
      }
    }
    if (trellis && squared_distance(row, meaning) >
                       kMaxOtherPath * squared_distance(row, reference::decode(right, layout))) {
      return layout_text(layout) + ": token " + std::to_string(token) +
             " lies further from its row than the best path";
    }
    for (int g = 0; g < layout.num_groups(); ++g) {
      // One step of a BF16 scale is 2^-7 of it at the most; a tie that falls the other way moves a
      // fitted scale by less than a few steps more.
      if (std::abs(stored.scales[g] - right.scales[g]) <= std::abs(right.scales[g]) * 0x1p-4)
        continue;
      return layout_text(layout) + ": token " + std::to_string(token) + ", group " +
             std::to_string(g) + " has scale " + text_of("%.6g", stored.scales[g]) +
             " instead of " + text_of("%.6g", right.scales[g]);
    }
  }
  return "";
}

double relative_error(const std::vector<float>& out, std::size_t first,
                      const std::vector<double>& right) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    error += std::pow(static_cast<double>(out[first + i]) - right[i], 2);
    norm += right[i] * right[i];
  }
  return std::sqrt(error / norm);
}

}  // namespace

SelfTestResult test_codec(const kernels::KernelSet& kernels) {
  std::mt19937_64 generator(kSeed);
  CodecTally tally;
  int num_layouts = 0;
  for (const int head_dim : {64, 80, 128, 256}) {
    for (const int bits : {2, 3, 4}) {
      for (const Codebook codebook :
           {Codebook::kAffine, Codebook::kSymmetric, Codebook::kTrellis}) {
        if (codebook == Codebook::kTrellis && bits != 2) continue;
        const ScaleFit fit = codebook == Codebook::kAffine ? ScaleFit::kPlain : ScaleFit::kUnbiased;
        const PlaneLayout layout{head_dim,
                                 {bits, head_dim % 128 == 0 ? 128 : head_dim, codebook, fit}};
        const std::string wrong = check_page(kernels, layout, &generator, &tally);
        if (!wrong.empty()) return {false, wrong};
        ++num_layouts;
      }
    }
  }
  const double others = static_cast<double>(tally.num_other) / static_cast<double>(tally.num_codes);
  return {others <= kMaxOtherCodes, std::to_string(num_layouts) + " layouts, " +
                                        text_of("%.2g", 100 * others) +
                                        " % of the codes on the other side of a tie"};
}

SelfTestResult test_attention(const kernels::KernelSet& kernels) {
  double worst[2] = {0, 0};
  int num_cases = 0;
  for (const char* spec : {"quarot:k2v2", "oscar-plus:k2v2", "oscar-plus:trellis",
                           "oscar-plus:k3v2", "quarot:k4v4", "naive:k16v16"}) {
    for (const std::int64_t num_queries : {1, 33}) {
      const SyntheticShape shape{6, 2, num_cases % 3 == 0 ? 64 : 128, 517, num_queries};
      SyntheticLayer layer(parse_kv_spec(std::string(spec) + ",sink=16,recent=64"), shape, kernels,
                           kSeed);
      const attention::Plan plan = attention::plan(layer.attention_shape(), 1);
      AlignedBuffer<std::uint8_t> workspace(plan.workspace_bytes);
      const std::vector<double> right = layer.reference();
      for (const bool in_float : {false, true}) {
        layer.params().float_path = in_float;
        attention::run(plan, layer.params(), workspace.data());
        const double error = relative_error(layer.out(), layer.out().size() - right.size(), right);
        const double limit = in_float ? kMaxFloatError : kMaxIntegerError;
        if (!(error <= limit)) {
          return {false, std::string(spec) + (in_float ? ",float" : "") + ", head size " +
                             std::to_string(shape.head_dim) + ", " + std::to_string(num_queries) +
                             " queries: relative error " + text_of("%.2g", error) + ", at most " +
                             text_of("%.2g", limit)};
        }
        worst[in_float] = std::max(worst[in_float], error);
        ++num_cases;
      }
    }
  }
  return {true, std::to_string(num_cases) + " cases, relative error at most " +
                    text_of("%.2g", worst[0]) + ", in single precision " +
                    text_of("%.2g", worst[1])};
}

}  // namespace oscar::eval
