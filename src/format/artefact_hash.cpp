#include "format/artefact_hash.h"

#include <string_view>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

namespace oscar {
namespace {

void add(std::string_view part, Hasher* hasher) {
  hasher->update(part.data(), part.size());
  hasher->update("", 1);
}

}  // namespace

std::string content_hash(const Safetensors& file) {
  Hasher hasher;
  for (const auto& [key, value] : file.metadata) {
    if (key == kContentHash) continue;
    add(key, &hasher);
    add(value, &hasher);
  }
  for (const auto& [name, view] : file.tensors) {
    add(name, &hasher);
    add(dtype_name(view.dtype), &hasher);
    add(shape_text(view.shape), &hasher);
    add({reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()}, &hasher);
  }
  return hasher.hex();
}

void check_content_hash(const Safetensors& file, const std::string& name) {
  const auto stored = file.metadata.find(kContentHash);
  if (stored == file.metadata.end()) return;
  const std::string right = content_hash(file);
  if (stored->second == right) return;
  throw Error(ErrorCode::kCorrupt, in_quotes(name) + ": its content has hash " + right + ", not " +
                                       in_quotes(stored->second) +
                                       " as it was written: the file is damaged or was edited; "
                                       "copy or calibrate it again");
}

}  // namespace oscar
