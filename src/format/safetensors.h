// The safetensors container: named tensors and string metadata.
//
//   8 bytes        N, little-endian
//   N bytes        JSON: {"__metadata__": {string: string}, NAME: {"dtype", "shape",
//   "data_offsets": [begin, end]}, ...} the rest       tensor data, little-endian, row-major;
//   offsets count from its first byte
//
// Reading trusts nothing: every byte of the file is accounted for, and a refusal says what is wrong
// with which tensor.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "format/dtype.h"

namespace oscar {

inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxTensorRank = 8;
inline constexpr const char* kSafetensorsMetadataKey = "__metadata__";

struct TensorView {
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  std::span<const std::uint8_t> bytes;  // dtype size × product of shape; of any alignment
};

// Views into the bytes that were parsed, which must outlive them.
struct Safetensors {
  std::map<std::string, TensorView> tensors;
  std::map<std::string, std::string> metadata;
};

// `name` is what messages call the file. Throws Error(kCorrupt) for bytes that are no safetensors
// file, contradict themselves, overlap, or leave a hole or a rest. Memory is bounded by a small
// multiple of the header's size.
Safetensors parse_safetensors(std::span<const std::uint8_t> bytes, const std::string& name);

// The same tensors and metadata give the same bytes: larger element types first, then by name; the
// header is padded with spaces so that the data starts on a multiple of 8. Throws
// Error(kInvalidArgument) where a view's bytes do not fit its shape or a text is not UTF-8; writing
// through a temporary name, Error(kIo).
std::string serialize_safetensors(const Safetensors& file);
void write_safetensors(const Safetensors& file, const std::string& path);

}  // namespace oscar
