// Any bytes are refused with oscar::Error or read; what is read is written and read again the same.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "format/safetensors.h"

namespace {

bool same(const oscar::Safetensors& a, const oscar::Safetensors& b) {
  if (a.metadata != b.metadata || a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, view] : a.tensors) {
    const auto found = b.tensors.find(name);
    if (found == b.tensors.end()) return false;
    const oscar::TensorView& other = found->second;
    if (view.dtype != other.dtype || view.shape != other.shape ||
        !std::equal(view.bytes.begin(), view.bytes.end(), other.bytes.begin(), other.bytes.end())) {
      return false;
    }
  }
  return true;
}

oscar::Safetensors parse_text(const std::string& bytes) {
  return oscar::parse_safetensors(
      {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, "written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  oscar::Safetensors file;
  try {
    file = oscar::parse_safetensors({data, size}, "input");
  } catch (const oscar::Error&) {
    return 0;
  }
  const std::string written = oscar::serialize_safetensors(file);
  const oscar::Safetensors again = parse_text(written);
  if (!same(file, again) || oscar::serialize_safetensors(again) != written) std::abort();
  return 0;
}
