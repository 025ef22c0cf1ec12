#include "format/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "format/safetensors_header.h"

namespace oscar {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor data is little-endian");

constexpr std::uint64_t kLengthBytes = 8;

[[noreturn]] void corrupt(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, in_quotes(name) + ": " + what);
}

bool starts_with_ignoring_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(), [](char want, char have) {
           return want == std::tolower(static_cast<unsigned char>(have));
         });
}

// What people save under this name by mistake; empty: nothing that is known.
const char* mistaken_for(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with("version https://git-lfs.github.com/spec/")) {
    return "this is a Git LFS pointer, not the file; fetch it with 'git lfs pull'";
  }
  if (text.starts_with("GGUF")) return "this is a GGUF model, not a safetensors file";
  if (text.starts_with("PK\x03\x04")) return "this is a zip or PyTorch file, not safetensors";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (starts_with_ignoring_case(text, "<!doctype") || starts_with_ignoring_case(text, "<html") ||
      starts_with_ignoring_case(text, "<?xml")) {
    return "this is an HTML page, not the file; the download went wrong";
  }
  return nullptr;
}

// Every tensor's bytes follow from its shape, and together they cover [0, num_data_bytes) once.
void check_offsets(const SafetensorsHeader& header, std::uint64_t num_data_bytes,
                   const std::string& name) {
  using Entry = std::pair<const std::string, TensorHeader>;
  std::vector<const Entry*> order;
  for (const Entry& entry : header.tensors) {
    const auto& [tensor, info] = entry;
    const std::string offsets = shape_text(std::array{info.begin, info.end});
    const auto bytes = tensor_bytes(info.dtype, info.shape);
    const std::string type = std::string(dtype_name(info.dtype)) + " " + shape_text(info.shape);
    if (!bytes)
      corrupt(name, "tensor " + in_quotes(tensor) + " of " + type + " is too large to exist");
    if (info.begin > info.end) {
      corrupt(name, "tensor " + in_quotes(tensor) + " has reversed data_offsets " + offsets);
    }
    if (info.end > num_data_bytes) {
      corrupt(name, "tensor " + in_quotes(tensor) + " has data_offsets " + offsets +
                        ", but the file holds " + std::to_string(num_data_bytes) +
                        " bytes of data; it is cut short or its header is wrong");
    }
    if (info.end - info.begin != *bytes) {
      corrupt(name, "tensor " + in_quotes(tensor) + " has data_offsets " + offsets + ", but " +
                        type + " takes " + std::to_string(*bytes) + " bytes");
    }
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t covered = 0;
  for (const Entry* entry : order) {
    const std::uint64_t begin = entry->second.begin;
    if (begin != covered) {
      corrupt(name, "tensor " + in_quotes(entry->first) + " begins at byte " +
                        std::to_string(begin) + " of the data, but the tensors before it end at " +
                        std::to_string(covered) +
                        (begin < covered ? ": they overlap" : ": a hole"));
    }
    covered = entry->second.end;
  }
  if (covered != num_data_bytes) {
    corrupt(name, std::to_string(num_data_bytes - covered) +
                      " bytes after the last tensor belong to no tensor");
  }
}

}  // namespace

Safetensors parse_safetensors(std::span<const std::uint8_t> bytes, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (const char* mistake = mistaken_for(text)) corrupt(name, mistake);
  if (bytes.size() < kLengthBytes) {
    corrupt(name, "it has " + std::to_string(bytes.size()) +
                      " bytes; a safetensors file has at least 8 and a header");
  }
  std::uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    corrupt(name, "its header length is " + std::to_string(header_bytes) + " bytes, at most " +
                      std::to_string(kMaxSafetensorsHeaderBytes) +
                      " are legal: this is no safetensors file");
  }
  if (header_bytes > bytes.size() - kLengthBytes) {
    corrupt(name, "its header length is " + std::to_string(header_bytes) + " bytes, but only " +
                      std::to_string(bytes.size() - kLengthBytes) + " follow: it is cut short");
  }
  SafetensorsHeader header =
      parse_safetensors_header(text.substr(kLengthBytes, header_bytes), name);
  const auto data = bytes.subspan(kLengthBytes + header_bytes);
  check_offsets(header, data.size(), name);
  Safetensors file;
  file.metadata = std::move(header.metadata);
  for (auto& [tensor, info] : header.tensors) {
    file.tensors.emplace(tensor, TensorView{info.dtype, std::move(info.shape),
                                            data.subspan(info.begin, info.end - info.begin)});
  }
  return file;
}

}  // namespace oscar
