#include "state_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "token_bytes.h"

namespace oscar::ggml_plugin {
namespace {

constexpr unsigned kSeed = 7;

struct Row {
  StateRowHeader header;
  std::vector<std::uint8_t> codes, bytes;
  std::vector<float> copy;
};

Row make_row(std::int64_t num_values, std::int64_t code_bytes, bool with_copy) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  Row row;
  row.header.layer = 5;
  row.header.transforms_hash = 0x12345678;
  row.header.quant = pack_quant({2, 64, Codebook::kAffine, ScaleFit::kPlain});
  row.header.shape = pack_shape(3, 64);
  row.header.sink_tokens = 64;
  row.header.recent_tokens = 256;
  row.header.position = 1234;
  row.codes.resize(code_bytes);
  for (std::uint8_t& byte : row.codes) byte = static_cast<std::uint8_t>(random());
  if (with_copy) {
    row.copy.resize(num_values);
    for (float& value : row.copy) value = 8 * normal(random);
  }
  row.bytes.resize(2 * num_values);
  write_state_row(row.header, row.codes, row.copy, row.bytes);
  return row;
}

StateRowKind read(const Row& row, const StateRowHeader& expected, std::string* reason,
                  StateRowHeader* header = nullptr, std::vector<float>* copy = nullptr) {
  std::vector<std::uint8_t> codes(row.codes.size());
  std::vector<float> values(row.bytes.size() / 2);
  StateRowHeader ignored;
  const StateRowKind kind = read_state_row(
      row.bytes, expected, header != nullptr ? header : &ignored, codes, values, reason);
  if (kind == StateRowKind::kCoded) {
    EXPECT_EQ(codes, row.codes);
  }
  if (copy != nullptr) *copy = values;
  return kind;
}

// Codes come back bit for bit; a copy within a unit of its block's last mantissa bit.
TEST(StateRow, RoundTrip) {
  for (const std::int64_t code_bytes : {60, 84, 108}) {
    const Row row = make_row(192, code_bytes, true);
    std::string reason;
    StateRowHeader header;
    std::vector<float> copy;
    ASSERT_EQ(read(row, row.header, &reason, &header, &copy), StateRowKind::kCoded) << reason;
    EXPECT_EQ(header.position, 1234);
    ASSERT_NE(header.flags & StateRowHeader::kHasCopy, 0);
    const int bits = copy_mantissa_bits(192, code_bytes, 384);
    ASSERT_GE(bits, 9);
    for (std::size_t block = 0; block < copy.size(); block += 32) {
      float largest = 0;
      for (std::size_t i = block; i < block + 32; ++i)
        largest = std::max(largest, std::abs(row.copy[i]));
      // |x| < 2^e, one unit is 2^(e − bits + 1), and the largest mantissa is one short of the
      // range.
      const double unit = std::ldexp(1.0, std::ilogb(largest) + 1 - (bits - 1));
      for (std::size_t i = block; i < block + 32; ++i)
        EXPECT_LE(std::abs(copy[i] - row.copy[i]), unit);
    }
  }
}

TEST(StateRow, FirstBytesAreNanInF16) {
  const Row row = make_row(192, 60, false);
  EXPECT_EQ(row.bytes[0], 0xff);
  EXPECT_EQ(row.bytes[1], 0xff);
}

TEST(StateRow, UnwrittenIsAllZeros) {
  Row row = make_row(192, 60, false);
  std::fill(row.bytes.begin(), row.bytes.end(), std::uint8_t{0});
  std::string reason;
  EXPECT_EQ(read(row, row.header, &reason), StateRowKind::kUnwritten);
}

// Every byte of the row is covered: changing any one is noticed.
TEST(StateRow, AnyFlippedByteIsRefused) {
  const Row row = make_row(192, 60, true);
  for (std::size_t at = 0; at < row.bytes.size(); ++at) {
    Row damaged = row;
    damaged.bytes[at] ^= 0x10;
    std::string reason;
    EXPECT_EQ(read(damaged, row.header, &reason), StateRowKind::kRefused) << "byte " << at;
    EXPECT_FALSE(reason.empty());
  }
}

TEST(StateRow, RefusalNamesTheFieldThatDiffers) {
  const Row row = make_row(192, 60, false);
  const auto reason_with = [&row](auto change) {
    StateRowHeader expected = row.header;
    change(&expected);
    std::string reason;
    EXPECT_EQ(read(row, expected, &reason), StateRowKind::kRefused);
    return reason;
  };
  using H = StateRowHeader;
  EXPECT_NE(reason_with([](H* h) { h->transforms_hash ^= 1; }).find("another method or artefact"),
            std::string::npos);
  EXPECT_NE(reason_with([](H* h) {
              h->quant = pack_quant({3, 64, Codebook::kAffine});
            }).find("2 bits in groups of 64"),
            std::string::npos);
  // Codebooks, scale fits and groups have bits of their own.
  EXPECT_NE(reason_with([](H* h) {
              h->quant = pack_quant({2, 64, Codebook::kTrellis, ScaleFit::kPlain});
            }).find("levels 0"),
            std::string::npos);
  EXPECT_NE(pack_quant({2, 64, Codebook::kTrellis, ScaleFit::kPlain}),
            pack_quant({2, 64, Codebook::kAffine, ScaleFit::kUnbiased}));
  EXPECT_NE(reason_with([](H* h) {
              h->shape = pack_shape(2, 128);
            }).find("3 KV heads of 64, of this cache 2 KV heads of 128"),
            std::string::npos);
  EXPECT_NE(reason_with([](H* h) { h->sink_tokens = 0; }).find("64 + 256, of this cache 0 + 256"),
            std::string::npos);
  EXPECT_NE(reason_with([](H* h) { h->layer = 6; }).find("layer is 5, of this cache 6"),
            std::string::npos);
  EXPECT_NE(reason_with([](H* h) { h->flags = H::kIsValues; }).find("layer"), std::string::npos);
  EXPECT_NE(reason_with([](H* h) { h->version = 1; }).find("version is 2, of this cache 1"),
            std::string::npos);
  EXPECT_NE(reason_with([](H* h) { h->magic ^= 1; }).find("another kind"), std::string::npos);
}

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// llama-server saves and restores states while it serves. Writing and reading a row, copy included,
// costs less than a checksum of it bit by bit alone: some 3,000 steps for 384 bytes, against 192
// values packed and unpacked.
TEST(StateRow, CostsLessThanItsBytesBitByBit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "times of an instrumented build say nothing";
#endif
  Row row = make_row(192, 60, true);
  std::vector<std::uint8_t> codes(60);
  std::vector<float> copy(192);
  std::string reason;
  StateRowHeader header;
  double rows_time = 1e9, bits_time = 1e9;
  std::uint32_t crc = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    double start = cpu_seconds();
    for (int i = 0; i < 2000; ++i) {
      write_state_row(row.header, row.codes, row.copy, row.bytes);
      ASSERT_EQ(read_state_row(row.bytes, row.header, &header, codes, copy, &reason),
                StateRowKind::kCoded);
    }
    rows_time = std::min(rows_time, cpu_seconds() - start);
    start = cpu_seconds();
    for (int i = 0; i < 2000; ++i) {
      for (const std::uint8_t byte : row.bytes) {
        crc ^= byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
      }
    }
    bits_time = std::min(bits_time, cpu_seconds() - start);
  }
  std::printf("a row: %.0f ns, bit by bit %.0f ns (%08x)\n", rows_time / 2000 * 1e9,
              bits_time / 2000 * 1e9, crc);
  EXPECT_LT(rows_time, bits_time);
}

// Version 2 has the block floats of version 1: these bytes were written by it.
TEST(StateRow, MantissasAreTwosComplementLowBitsFirst) {
  StateRowHeader header;
  std::vector<float> copy(32, 0.0f), read_copy(32);
  copy[0] = 1.0f;
  copy[1] = -0.5f;
  copy[2] = 1.75f;
  std::vector<std::uint8_t> row(sizeof(StateRowHeader) + 1 + 4 * 9, 0), none;
  ASSERT_EQ(copy_mantissa_bits(32, 0, std::ssize(row)), 9);
  write_state_row(header, none, copy, row);
  // The exponent is that of 2: 161 with the bias. 9 bits: 1 is 128, −0.5 is −64, 1.75 is 224.
  const std::uint64_t bits = 128u | std::uint64_t{512 - 64} << 9 | std::uint64_t{224} << 18;
  EXPECT_EQ(row[28], 161);
  for (int byte = 0; byte < 5; ++byte)
    EXPECT_EQ(row[29 + byte], static_cast<std::uint8_t>(bits >> (8 * byte))) << byte;
  std::string reason;
  StateRowHeader saved;
  ASSERT_EQ(read_state_row(row, header, &saved, {}, read_copy, &reason), StateRowKind::kCoded)
      << reason;
  EXPECT_EQ(read_copy, copy);
}

// One KV head of 32 channels at 4 bits leaves no room for a useful copy, and the row says so.
TEST(StateRow, NoRoomForACopy) {
  EXPECT_EQ(copy_mantissa_bits(32, 20, 64), 0);
  Row row = make_row(32, 20, true);
  std::string reason;
  StateRowHeader header;
  ASSERT_EQ(read(row, row.header, &reason, &header), StateRowKind::kCoded) << reason;
  EXPECT_EQ(header.flags & StateRowHeader::kHasCopy, 0);
}

TEST(TokenBytes, ScatterUndoesGather) {
  for (const QuantSpec quant :
       {QuantSpec{2, 32, Codebook::kAffine}, QuantSpec{3, 64, Codebook::kSymmetric},
        QuantSpec{4, 16, Codebook::kAffine}, QuantSpec{16, 64}}) {
    const PlaneLayout layout{64, quant};
    std::mt19937 random(kSeed);
    std::vector<std::uint8_t> plane(layout.plane_bytes()), rebuilt(layout.plane_bytes(), 0);
    for (std::uint8_t& byte : plane) byte = static_cast<std::uint8_t>(random());
    std::vector<std::uint8_t> run(token_bytes(layout));
    for (int token = 0; token < kPageSize; ++token) {
      gather_token(layout, plane.data(), token, run.data());
      scatter_token(layout, run.data(), token, rebuilt.data());
    }
    EXPECT_EQ(rebuilt, plane) << quant.bits << " bits";
  }
}

}  // namespace
}  // namespace oscar::ggml_plugin
