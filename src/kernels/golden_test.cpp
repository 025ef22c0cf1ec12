// Golden vectors of the codec, from golden/generate.py: bytes that no change may alter unnoticed,
// since pages are saved.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "kernels/kernels_test_support.h"

namespace oscar::kernels {
namespace {

std::uint32_t parse_hex(const std::string& text, std::size_t first, std::size_t length) {
  return static_cast<std::uint32_t>(std::stoul(text.substr(first, length), nullptr, 16));
}

float parse_float(const std::string& text, std::size_t first) {
  const std::uint32_t bits = parse_hex(text, first, 8);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

Codebook parse_codebook(const std::string& name) {
  return name == "affine"      ? Codebook::kAffine
         : name == "symmetric" ? Codebook::kSymmetric
                               : Codebook::kTrellis;
}

ScaleFit parse_fit(const std::string& name) {
  return name == "plain"      ? ScaleFit::kPlain
         : name == "unbiased" ? ScaleFit::kUnbiased
                              : ScaleFit::kLeastSquares;
}

std::string hex_bytes(const std::uint8_t* bytes, std::int64_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

// BF16 metadata of one token, most significant digit first.
std::string hex_metadata(const std::uint8_t* metadata, int num_groups, int token) {
  std::string text;
  for (int group = 0; group < num_groups; ++group) {
    const std::uint8_t* p = metadata + 2 * (group * kPageSize + token);
    const std::uint8_t big_endian[] = {p[1], p[0]};
    text += hex_bytes(big_endian, 2);
  }
  return text;
}

TEST(Golden, EverySetWritesTheStoredBytes) {
  std::ifstream file(OSCAR_GOLDEN_CODEC);
  ASSERT_TRUE(file) << OSCAR_GOLDEN_CODEC;
  std::map<std::string, std::vector<float>> rows;
  int num_cases = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string kind, row_name;
    fields >> kind >> row_name;
    if (kind == "row") {
      std::string hex;
      fields >> hex;
      for (std::size_t i = 0; i < hex.size(); i += 8) rows[row_name].push_back(parse_float(hex, i));
      continue;
    }
    std::string codebook, fit, clip, codes, scales, zeros;
    int bits = 0, group_size = 0;
    fields >> bits >> group_size >> codebook >> fit >> clip >> codes >> scales >> zeros;
    const std::vector<float>& row = rows.at(row_name);
    const PlaneLayout layout{static_cast<int>(row.size()),
                             {bits, group_size, parse_codebook(codebook), parse_fit(fit)}};
    constexpr std::int32_t kToken = 37;
    for (const KernelSet* set : runnable_sets()) {
      std::vector<std::uint8_t> plane = make_plane(layout, 0);
      std::uint8_t* const planes[] = {plane.data()};
      ASSERT_TRUE(set->encode_rows(
          {row.data(), planes, &kToken, 1, layout.head_dim, layout, parse_float(clip, 0)}));
      const std::int64_t row_bytes = layout.code_row_bytes();
      EXPECT_EQ(hex_bytes(plane.data() + kToken * row_bytes, row_bytes), codes) << line;
      EXPECT_EQ(hex_metadata(plane.data() + layout.scales_offset(), layout.num_groups(), kToken),
                scales)
          << set->name << " " << line;
      if (layout.quant.codebook == Codebook::kAffine) {
        EXPECT_EQ(hex_metadata(plane.data() + layout.zeros_offset(), layout.num_groups(), kToken),
                  zeros)
            << set->name << " " << line;
      }
    }
    ++num_cases;
  }
  EXPECT_EQ(num_cases, (3 * 2 + 1) * 3 * 4) << "(bits × codebooks, trellis) × fits × rows";
}

}  // namespace
}  // namespace oscar::kernels
