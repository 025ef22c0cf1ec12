#include <memory>
#include <string>

#include "base/checked_math.h"
#include "base/hash.h"
#include "capi/handles.h"
#include "capi/status.h"
#include "format/artefact_hash.h"
#include "format/dtype.h"

namespace oscar::capi {
namespace {

constexpr int kMaxRank = 4;

std::string tensor_text(std::int64_t index) { return "tensors[" + std::to_string(index) + "]"; }

TensorView view_of(const oscar_tensor& tensor, std::int64_t index) {
  const std::string where = tensor_text(index) + " ('" + tensor.name + "')";
  if (tensor.rank < 0 || tensor.rank > kMaxRank) {
    throw Error(ErrorCode::kInvalidArgument, where + ": rank is " + std::to_string(tensor.rank) +
                                                 "; it must be 0 to " + std::to_string(kMaxRank));
  }
  TensorView view{DType::kF32, {}, {}};
  std::uint64_t num_bytes = sizeof(float);
  for (int i = 0; i < tensor.rank; ++i) {
    const std::int64_t size = tensor.shape[i];
    const auto product = size < 0 ? std::nullopt : checked_mul(num_bytes, std::uint64_t(size));
    if (!product) {
      throw Error(ErrorCode::kInvalidArgument, where + ": shape[" + std::to_string(i) + "] is " +
                                                   std::to_string(size) +
                                                   "; it must be a size that can be counted");
    }
    view.shape.push_back(static_cast<std::uint64_t>(size));
    num_bytes = *product;
  }
  if (num_bytes > 0) require_pointer(tensor.data, (where + ".data").c_str());
  view.bytes = {reinterpret_cast<const std::uint8_t*>(tensor.data), num_bytes};
  return view;
}

Safetensors file_of(const oscar_tensor* tensors, std::int64_t num_tensors,
                    const oscar_text* metadata, std::int64_t num_texts) {
  Safetensors file;
  for (std::int64_t i = 0; i < num_tensors; ++i) {
    require_pointer(tensors[i].name, (tensor_text(i) + ".name").c_str());
    if (!file.tensors.emplace(tensors[i].name, view_of(tensors[i], i)).second) {
      throw Error(ErrorCode::kInvalidArgument, tensor_text(i) + " is '" + tensors[i].name +
                                                   "' again; each tensor may come once");
    }
  }
  for (std::int64_t i = 0; i < num_texts; ++i) {
    const std::string where = "metadata[" + std::to_string(i) + "]";
    require_pointer(metadata[i].key, (where + ".key").c_str());
    require_pointer(metadata[i].value, (where + ".value").c_str());
    if (!file.metadata.emplace(metadata[i].key, metadata[i].value).second) {
      throw Error(ErrorCode::kInvalidArgument,
                  where + " is '" + metadata[i].key + "' again; each key may come once");
    }
  }
  if (file.metadata.count(kContentHash) != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("metadata '") + kContentHash + "' is made here; leave it out");
  }
  return file;
}

void require_count(const char* name, std::int64_t count, const void* items,
                   const char* items_name) {
  if (count < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " is " + std::to_string(count) + "; it must be at least 0");
  }
  if (count > 0) require_pointer(items, items_name);
}

void require_index(std::int64_t index, std::int64_t size) {
  if (index >= 0 && index < size) return;
  throw Error(ErrorCode::kInvalidArgument, "index is " + std::to_string(index) +
                                               "; it must be 0 to " + std::to_string(size - 1));
}

bool is_probe(const std::string& tensor) { return tensor.ends_with("_probe"); }

}  // namespace
}  // namespace oscar::capi

oscar_artefact::oscar_artefact(oscar::Artefact given, const std::string& name)
    : artefact(std::move(given)), file(oscar::artefact_file(artefact, name)) {
  for (const auto& [tensor, view] : file.file.tensors) {
    if (oscar::capi::is_probe(tensor)) continue;
    oscar_tensor out = {};
    out.name = tensor.c_str();
    out.data = reinterpret_cast<const float*>(view.bytes.data());
    out.rank = static_cast<std::int32_t>(view.shape.size());
    for (std::size_t i = 0; i < view.shape.size(); ++i)
      out.shape[i] = static_cast<std::int64_t>(view.shape[i]);
    tensors.push_back(out);
  }
  for (const auto& [key, value] : file.file.metadata) {
    if (key != oscar::kContentHash) texts.push_back({key.c_str(), value.c_str()});
  }
}

using oscar::capi::guarded;
using oscar::capi::require_pointer;

extern "C" {

oscar_status oscar_artefact_load(const char* path, oscar_artefact** out) {
  return guarded([&] {
    require_pointer(path, "path");
    require_pointer(out, "out");
    *out = std::make_unique<oscar_artefact>(oscar::load_artefact(path), path).release();
    return OSCAR_OK;
  });
}

oscar_status oscar_artefact_create(const oscar_tensor* tensors, int64_t num_tensors,
                                   const oscar_text* metadata, int64_t num_texts,
                                   oscar_artefact** out) {
  return guarded([&] {
    require_pointer(out, "out");
    oscar::capi::require_count("num_tensors", num_tensors, tensors, "tensors");
    oscar::capi::require_count("num_texts", num_texts, metadata, "metadata");
    const oscar::Safetensors file = oscar::capi::file_of(tensors, num_tensors, metadata, num_texts);
    const std::string name = "artefact";
    *out =
        std::make_unique<oscar_artefact>(oscar::artefact_from_tensors(file, name), name).release();
    return OSCAR_OK;
  });
}

oscar_status oscar_artefact_save(const oscar_artefact* artefact, const char* path) {
  return guarded([&] {
    require_pointer(artefact, "artefact");
    require_pointer(path, "path");
    oscar::save_artefact(artefact->artefact, path);
    return OSCAR_OK;
  });
}

void oscar_artefact_free(oscar_artefact* artefact) { delete artefact; }

int64_t oscar_artefact_num_tensors(const oscar_artefact* artefact) {
  return artefact == nullptr ? -1 : std::ssize(artefact->tensors);
}
int64_t oscar_artefact_num_texts(const oscar_artefact* artefact) {
  return artefact == nullptr ? -1 : std::ssize(artefact->texts);
}

oscar_status oscar_artefact_tensor(const oscar_artefact* artefact, int64_t index,
                                   oscar_tensor* out) {
  return guarded([&] {
    require_pointer(artefact, "artefact");
    require_pointer(out, "out");
    oscar::capi::require_index(index, std::ssize(artefact->tensors));
    *out = artefact->tensors[index];
    return OSCAR_OK;
  });
}

oscar_status oscar_artefact_text(const oscar_artefact* artefact, int64_t index, oscar_text* out) {
  return guarded([&] {
    require_pointer(artefact, "artefact");
    require_pointer(out, "out");
    oscar::capi::require_index(index, std::ssize(artefact->texts));
    *out = artefact->texts[index];
    return OSCAR_OK;
  });
}

oscar_status oscar_artefact_check_model(const oscar_artefact* artefact, const char* architecture,
                                        const oscar_model* model, const char* weights_hash) {
  return guarded([&] {
    require_pointer(artefact, "artefact");
    require_pointer(architecture, "architecture");
    require_pointer(model, "model");
    oscar::check_fingerprint(
        artefact->artefact,
        {architecture, model->num_layers, model->num_q_heads, model->num_kv_heads,
         model->head_dim_k, model->head_dim_v, weights_hash == nullptr ? "" : weights_hash});
    return OSCAR_OK;
  });
}

oscar_status oscar_hash(const void* bytes, size_t num_bytes, char out[33]) {
  return guarded([&] {
    if (num_bytes > 0) require_pointer(bytes, "bytes");
    require_pointer(out, "out");
    const std::string hex = oscar::hash_hex(bytes, num_bytes);
    hex.copy(out, 32);
    out[32] = '\0';
    return OSCAR_OK;
  });
}

}  // extern "C"
