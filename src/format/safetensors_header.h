// The JSON header of a safetensors file, parsed as a stream: no tree, no recursion, nothing kept
// that the format does not know.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/dtype.h"

namespace oscar {

struct TensorHeader {
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes of the data section; not yet checked against anything
};

struct SafetensorsHeader {
  std::map<std::string, TensorHeader> tensors;
  std::map<std::string, std::string> metadata;
};

// Throws Error(kCorrupt) naming the tensor and field, or the byte where the JSON ends to be JSON.
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& name);

}  // namespace oscar
