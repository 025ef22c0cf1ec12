// What a saved sequence holds for one cell, layer and side: the bytes of one row that llama.cpp
// takes for F16.
//
//   header 28 B | codes and scales of each KV head | exact copy as block floats | zeros
//
// The first two bytes are a NaN in F16, so that a llama.cpp without the plugin computes NaN from
// it, never fluent nonsense. The copy gets what is left of the row: blocks of 32 channels, one
// exponent byte each, then mantissas of equal width. A cell that was never written is all zeros.
// Exact sides (16 bits) are true F16 rows without a header.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "format/plane_layout.h"

namespace oscar::ggml_plugin {

inline constexpr std::uint8_t kStateVersion = 2;  // 1: the checksum was a CRC-32C

struct StateRowHeader {
  std::uint16_t nan = 0xffff;
  std::uint16_t magic = 0x4b4f;
  std::uint8_t version = kStateVersion;
  std::uint8_t flags = 0;             // kHasCopy, kIsValues
  std::uint16_t layer = 0;            // the model's
  std::uint32_t transforms_hash = 0;  // method, transforms, means
  std::uint16_t quant = 0;            // bits, codebook, scale fit, group size
  std::uint16_t shape = 0;            // KV heads, head size
  std::uint16_t sink_tokens = 0, recent_tokens = 0;
  std::int32_t position = 0;
  std::uint32_t checksum = 0;  // XXH3 of all other bytes of the row

  static constexpr std::uint8_t kHasCopy = 1, kIsValues = 2;
};
static_assert(sizeof(StateRowHeader) == 28);

std::uint16_t pack_quant(const QuantSpec& quant);
std::uint16_t pack_shape(int num_kv_heads, int head_dim);

// Bits of a copy's mantissa, sign included, in a row of row_bytes whose codes take code_bytes; 0:
// no room for a useful copy.
int copy_mantissa_bits(std::int64_t num_values, std::int64_t code_bytes, std::int64_t row_bytes);

// Writes a row. codes: all heads; copy: [num_values] or empty. Sets flags' kHasCopy and the
// checksum.
void write_state_row(StateRowHeader header, std::span<const std::uint8_t> codes,
                     std::span<const float> copy, std::span<std::uint8_t> row);

enum class StateRowKind { kUnwritten, kCoded, kRefused };

// What the row is; `expected` says what must agree (position and kHasCopy do not). On kRefused
// `reason` names the first field that differs, both values. codes, copy: as in write_state_row,
// filled on kCoded; copy only where the row has one.
StateRowKind read_state_row(std::span<const std::uint8_t> row, const StateRowHeader& expected,
                            StateRowHeader* header, std::span<std::uint8_t> codes,
                            std::span<float> copy, std::string* reason);

}  // namespace oscar::ggml_plugin
