#include "state_row.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/hash.h"

namespace oscar::ggml_plugin {
namespace {

constexpr std::int64_t kBlockValues = 32;
constexpr int kMinMantissaBits = 4, kMaxMantissaBits = 16;
constexpr int kExponentBias = 160;  // exponent byte 1..255; 0: a block of zeros

// XXH3-64 of the header before its checksum, seeded with that of the row behind the header; the low
// half.
std::uint32_t row_checksum(std::span<const std::uint8_t> row) {
  const std::span<const std::uint8_t> rest = row.subspan(sizeof(StateRowHeader));
  return static_cast<std::uint32_t>(
      hash_64(row.data(), offsetof(StateRowHeader, checksum), hash_64(rest.data(), rest.size())));
}

std::int64_t block_bytes(int mantissa_bits) { return 1 + kBlockValues * mantissa_bits / 8; }

// To the nearest whole number, ties to even; |value| < 2^51.
double rounded(double value) {
  constexpr double kShift = 0x1.8p52;
  return (value + kShift) - kShift;
}

// value ≈ mantissa · 2^(exponent − bias − (bits − 1)), |mantissa| < 2^(bits − 1).
void write_block(const float* values, int bits, std::uint8_t* out) {
  std::memset(out, 0, static_cast<std::size_t>(block_bytes(bits)));
  float largest = 0;
  for (int i = 0; i < kBlockValues; ++i) largest = std::max(largest, std::abs(values[i]));
  if (largest == 0.0f) return;
  const int exponent = std::ilogb(largest) + 1;
  out[0] = static_cast<std::uint8_t>(std::clamp(exponent + kExponentBias, 1, 255));
  const double limit = (1 << (bits - 1)) - 1;
  const double scale = std::ldexp(1.0, bits - 1 - (out[0] - kExponentBias));
  const std::uint32_t mask = (1u << bits) - 1;
  std::uint32_t pending = 0;  // bits not written yet, the next lowest
  int num_pending = 0;
  std::uint8_t* next = out + 1;
  for (int i = 0; i < kBlockValues; ++i) {
    const double mantissa = std::clamp(rounded(double{values[i]} * scale), -limit, limit);
    pending |= (static_cast<std::uint32_t>(static_cast<std::int32_t>(mantissa)) & mask)
               << num_pending;
    for (num_pending += bits; num_pending >= 8; num_pending -= 8, pending >>= 8)
      *next++ = static_cast<std::uint8_t>(pending);
  }
}

void read_block(const std::uint8_t* in, int bits, float* values) {
  if (in[0] == 0) {
    std::fill_n(values, kBlockValues, 0.0f);
    return;
  }
  const double scale = std::ldexp(1.0, in[0] - kExponentBias - (bits - 1));
  const std::uint32_t mask = (1u << bits) - 1, sign = 1u << (bits - 1);
  std::uint32_t pending = 0;
  int num_pending = 0;
  const std::uint8_t* next = in + 1;
  for (int i = 0; i < kBlockValues; ++i) {
    for (; num_pending < bits; num_pending += 8) pending |= std::uint32_t{*next++} << num_pending;
    const auto mantissa =
        static_cast<std::int32_t>((pending & mask) ^ sign) - static_cast<std::int32_t>(sign);
    values[i] = static_cast<float>(mantissa * scale);
    pending >>= bits;
    num_pending -= bits;
  }
}

std::string describe_quant(std::uint16_t quant) {
  return std::to_string(quant & 31) + " bits in groups of " +
         std::to_string((quant >> 8 & 31) * 16) + " (levels " +
         std::to_string((quant >> 5 & 1) | (quant >> 13 & 1) << 1) + ", scale " +
         std::to_string(quant >> 6 & 3) + ")";
}

std::string describe_shape(std::uint16_t shape) {
  return std::to_string(shape >> 5) + " KV heads of " + std::to_string((shape & 31) * 16);
}

// The first field in which the row differs from what this cache holds; "" when it fits.
std::string difference(std::span<const std::uint8_t> row, const StateRowHeader& saved,
                       const StateRowHeader& here) {
  const auto differ = [](const std::string& what, const std::string& row_value,
                         const std::string& cache_value) {
    return what + " is " + row_value + ", of this cache " + cache_value;
  };
  if (saved.nan != here.nan || saved.magic != here.magic) {
    return "it was saved by a cache of another kind (f16, or exact keys or values)";
  }
  if (saved.version != here.version) {
    return differ("the version", std::to_string(saved.version), std::to_string(here.version));
  }
  if (row_checksum(row) != saved.checksum)
    return "its checksum does not match: the state is damaged";
  if (saved.shape != here.shape)
    return differ("the shape", describe_shape(saved.shape), describe_shape(here.shape));
  if (saved.quant != here.quant)
    return differ("the coding", describe_quant(saved.quant), describe_quant(here.quant));
  if (saved.layer != here.layer ||
      (saved.flags & here.kIsValues) != (here.flags & here.kIsValues)) {
    return differ("the layer", std::to_string(saved.layer), std::to_string(here.layer));
  }
  if (saved.transforms_hash != here.transforms_hash)
    return "it was made with another method or artefact";
  if (saved.sink_tokens != here.sink_tokens || saved.recent_tokens != here.recent_tokens) {
    const auto window = [](const StateRowHeader& h) {
      return std::to_string(h.sink_tokens) + " + " + std::to_string(h.recent_tokens);
    };
    return differ("the window", window(saved), window(here));
  }
  return "";
}

}  // namespace

std::uint16_t pack_quant(const QuantSpec& quant) {
  const int codebook = static_cast<int>(quant.codebook);
  return static_cast<std::uint16_t>(quant.bits | (codebook & 1) << 5 | codebook >> 1 << 13 |
                                    static_cast<int>(quant.scale_fit) << 6 |
                                    quant.group_size / 16 << 8);
}

std::uint16_t pack_shape(int num_kv_heads, int head_dim) {
  return static_cast<std::uint16_t>(num_kv_heads << 5 | head_dim / 16);
}

int copy_mantissa_bits(std::int64_t num_values, std::int64_t code_bytes, std::int64_t row_bytes) {
  const std::int64_t num_blocks = (num_values + kBlockValues - 1) / kBlockValues;
  const std::int64_t room =
      row_bytes - static_cast<std::int64_t>(sizeof(StateRowHeader)) - code_bytes;
  const std::int64_t bits = (room / num_blocks - 1) * 8 / kBlockValues;
  return bits < kMinMantissaBits ? 0
                                 : static_cast<int>(std::min<std::int64_t>(bits, kMaxMantissaBits));
}

void write_state_row(StateRowHeader header, std::span<const std::uint8_t> codes,
                     std::span<const float> copy, std::span<std::uint8_t> row) {
  std::fill(row.begin(), row.end(), std::uint8_t{0});
  std::copy(codes.begin(), codes.end(), row.begin() + sizeof header);
  const int bits =
      copy.empty() ? 0 : copy_mantissa_bits(std::ssize(copy), std::ssize(codes), std::ssize(row));
  header.flags = static_cast<std::uint8_t>((header.flags & ~StateRowHeader::kHasCopy) |
                                           (bits > 0 ? StateRowHeader::kHasCopy : 0));
  std::uint8_t* out = row.data() + sizeof header + codes.size();
  for (std::int64_t i = 0; bits > 0 && i < std::ssize(copy);
       i += kBlockValues, out += block_bytes(bits)) {
    float block[kBlockValues] = {};
    std::copy_n(copy.data() + i, std::min(kBlockValues, std::ssize(copy) - i), block);
    write_block(block, bits, out);
  }
  std::memcpy(row.data(), &header, sizeof header);
  header.checksum = row_checksum(row);
  std::memcpy(row.data(), &header, sizeof header);
}

StateRowKind read_state_row(std::span<const std::uint8_t> row, const StateRowHeader& expected,
                            StateRowHeader* header, std::span<std::uint8_t> codes,
                            std::span<float> copy, std::string* reason) {
  if (std::all_of(row.begin(), row.end(), [](std::uint8_t byte) { return byte == 0; })) {
    return StateRowKind::kUnwritten;
  }
  std::memcpy(header, row.data(), sizeof *header);
  *reason = difference(row, *header, expected);
  if (!reason->empty()) return StateRowKind::kRefused;
  std::copy_n(row.begin() + sizeof *header, codes.size(), codes.begin());
  if ((header->flags & StateRowHeader::kHasCopy) == 0) return StateRowKind::kCoded;
  const int bits = copy_mantissa_bits(std::ssize(copy), std::ssize(codes), std::ssize(row));
  const std::uint8_t* in = row.data() + sizeof *header + codes.size();
  for (std::int64_t i = 0; i < std::ssize(copy); i += kBlockValues, in += block_bytes(bits)) {
    float block[kBlockValues];
    read_block(in, bits, block);
    std::copy_n(block, std::min(kBlockValues, std::ssize(copy) - i), copy.data() + i);
  }
  return StateRowKind::kCoded;
}

}  // namespace oscar::ggml_plugin
