// Any bytes are refused with oscar::Error in one line, or give an artefact that passes for its own
// model.
//
// A mutated file rarely has a whole header, so the input's first byte may ask for the header's
// length to be put right.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "format/artefact.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::uint8_t> bytes(data + 1, data + size);
  if ((data[0] & 1) != 0 && bytes.size() > sizeof(std::uint64_t)) {
    const char* begin = reinterpret_cast<const char*>(bytes.data()) + sizeof(std::uint64_t);
    const char* end = reinterpret_cast<const char*>(bytes.data()) + bytes.size();
    std::uint64_t length = 0;  // up to the brace that closes the first one
    int depth = 0;
    for (const char* at = begin; at < end; ++at) {
      depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
      if (depth == 0) {
        length = static_cast<std::uint64_t>(at - begin) + 1;
        break;
      }
    }
    std::memcpy(bytes.data(), &length, sizeof length);
  }
  try {
    const oscar::Artefact artefact = oscar::parse_artefact(bytes.data(), bytes.size(), "input");
    oscar::check_fingerprint(artefact, artefact.model);
  } catch (const oscar::Error& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
