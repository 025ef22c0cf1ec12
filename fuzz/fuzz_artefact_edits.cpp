// A good artefact, edited: the container stays whole, so the checks behind it are what meets the
// edits. What still loads is saved and loaded again, and its bytes do not change any more.
//
// The input is a list of edits of 8 bytes: kind, index (1 byte each), position (2), value (4).
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "format/artefact.h"
#include "format/artefact_hash.h"
#include "format/safetensors.h"
#include "seed_artefact.h"

namespace {

struct Edit {
  std::uint8_t kind, index;
  std::uint16_t position;
  std::uint32_t value;
};
static_assert(sizeof(Edit) == 8);

struct Tensor {
  oscar::DType dtype;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint8_t> bytes;
};

struct EditedFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;

  static EditedFile seed() {
    const std::string bytes = oscar::serialize_artefact(seed_artefact(true), "seed");
    const oscar::Safetensors file = oscar::parse_safetensors(
        {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, "seed");
    EditedFile out;
    out.metadata = file.metadata;
    out.metadata.erase(oscar::kContentHash);  // every edit would be refused for it
    for (const auto& [name, view] : file.tensors) {
      out.tensors[name] = {view.dtype, view.shape, {view.bytes.begin(), view.bytes.end()}};
    }
    return out;
  }

  void apply(const Edit& edit) {
    if (tensors.empty()) return;
    const auto tensor = std::next(tensors.begin(), edit.index % tensors.size());
    const auto text = std::next(metadata.begin(), edit.index % metadata.size());
    auto& bytes = tensor->second.bytes;
    auto& shape = tensor->second.shape;
    switch (edit.kind % 7) {
      case 0:  // a value
        if (bytes.size() >= sizeof edit.value) {
          std::memcpy(
              bytes.data() + edit.position % (bytes.size() / sizeof edit.value) * sizeof edit.value,
              &edit.value, sizeof edit.value);
        }
        break;
      case 1:  // an extent
        if (!shape.empty()) shape[edit.position % shape.size()] = edit.value % 4096;
        break;
      case 2:  // a character of the metadata
        if (!text->second.empty()) {
          text->second[edit.position % text->second.size()] = static_cast<char>(edit.value % 128);
        }
        break;
      case 3: tensors.erase(tensor); break;
      case 4:
        tensors["layers." + std::to_string(edit.position) + ".k_mean"] = tensor->second;
        break;
      case 5:  // an element type
        tensor->second.dtype = static_cast<oscar::DType>(edit.value % 15);
        break;
      default:  // characters more or fewer
        text->second.insert(edit.position % (text->second.size() + 1), edit.value % 4,
                            static_cast<char>(edit.value >> 8 & 127));
        break;
    }
  }

  // Tensors grow or shrink to what their shapes say.
  std::string bytes() {
    oscar::Safetensors file;
    file.metadata = metadata;
    for (auto& [name, tensor] : tensors) {
      const auto size = oscar::tensor_bytes(tensor.dtype, tensor.shape);
      if (!size || *size > 1 << 20) throw oscar::Error(oscar::ErrorCode::kUnsupported, "too large");
      tensor.bytes.resize(*size);
      file.tensors[name] = {tensor.dtype, tensor.shape, tensor.bytes};
    }
    return oscar::serialize_safetensors(file);
  }
};

oscar::Artefact parse(const std::string& bytes) {
  return oscar::parse_artefact(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(),
                               "edited");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const EditedFile kSeed = EditedFile::seed();
  EditedFile file = kSeed;
  for (std::size_t at = 0; at + sizeof(Edit) <= size; at += sizeof(Edit)) {
    Edit edit;
    std::memcpy(&edit, data + at, sizeof edit);
    file.apply(edit);
  }
  std::string saved;
  try {
    saved = oscar::serialize_artefact(parse(file.bytes()), "saved");
  } catch (const oscar::Error& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
    return 0;
  }
  if (oscar::serialize_artefact(parse(saved), "again") != saved) std::abort();
  return 0;
}
