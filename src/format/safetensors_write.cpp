#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/text.h"
#include "format/safetensors.h"

namespace oscar {
namespace {

constexpr std::uint64_t kDataAlignment = 8;

using Entry = std::pair<const std::string, TensorView>;

std::string json_text(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw Error(ErrorCode::kInvalidArgument, "the text " + in_quotes(text) + " is not UTF-8");
  }
}

// Large elements first keeps every tensor aligned to its own element.
std::vector<const Entry*> data_order(const Safetensors& file) {
  std::vector<const Entry*> order;
  for (const Entry& entry : file.tensors) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return dtype_bytes(a->second.dtype) > dtype_bytes(b->second.dtype);
  });
  return order;
}

// Length, JSON and padding: all that comes before the data.
std::string serialize_header(const Safetensors& file, const std::vector<const Entry*>& order) {
  std::string json = "{";
  const char* separator = "";
  if (!file.metadata.empty()) {
    json += json_text(kSafetensorsMetadataKey) + ":{";
    for (const auto& [key, value] : file.metadata) {
      json += separator;
      json += json_text(key) + ":" + json_text(value);
      separator = ",";
    }
    json += "}";
  }
  std::uint64_t offset = 0;
  for (const Entry* entry : order) {
    const auto& [name, view] = *entry;
    if (name == kSafetensorsMetadataKey) {
      throw Error(ErrorCode::kInvalidArgument,
                  "no tensor can be named '" + name + "'; the name is the metadata's");
    }
    if (tensor_bytes(view.dtype, view.shape) != view.bytes.size()) {
      throw Error(ErrorCode::kInvalidArgument, "tensor " + in_quotes(name) + " of " +
                                                   dtype_name(view.dtype) + " " +
                                                   shape_text(view.shape) + " is given " +
                                                   std::to_string(view.bytes.size()) + " bytes");
    }
    const std::uint64_t end = offset + view.bytes.size();
    json += separator;
    json += json_text(name) + ":{\"dtype\":\"" + dtype_name(view.dtype) +
            "\",\"shape\":" + shape_text(view.shape) + ",\"data_offsets\":[" +
            std::to_string(offset) + "," + std::to_string(end) + "]}";
    separator = ",";
    offset = end;
  }
  json += "}";
  json.resize((json.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  const std::uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + json;
}

}  // namespace

std::string serialize_safetensors(const Safetensors& file) {
  const auto order = data_order(file);
  std::string bytes = serialize_header(file, order);
  for (const Entry* entry : order) {
    const auto& data = entry->second.bytes;
    bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
  }
  return bytes;
}

void write_safetensors(const Safetensors& file, const std::string& path) {
  const auto order = data_order(file);
  const std::string header = serialize_header(file, order);
  AtomicFile out(path);
  out.write(header);
  for (const Entry* entry : order) {
    out.write(entry->second.bytes.data(), entry->second.bytes.size());
  }
  out.commit();
}

}  // namespace oscar
