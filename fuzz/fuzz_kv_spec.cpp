// Any text is a specification within its legal ranges, or is refused with oscar::Error.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "format/kv_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const oscar::KvSpec spec = oscar::parse_kv_spec(text);
    const bool windows_legal =
        spec.sink_tokens >= 0 && spec.sink_tokens <= oscar::kMaxWindowTokens &&
        spec.recent_tokens >= 0 && spec.recent_tokens <= oscar::kMaxWindowTokens;
    const bool named = spec.kind != oscar::KvSpec::Kind::kFile || !spec.file.empty();
    if (spec.text != text || !windows_legal || !named) std::abort();
  } catch (const oscar::Error& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
