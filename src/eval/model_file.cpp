#include "eval/model_file.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/hash.h"
#include "eval/byte_reader.h"
#include "format/quant_spec.h"

namespace oscar::eval {
namespace {

// Weight bytes that the fingerprint is taken over: enough to tell fine-tunes apart, few enough to
// be read in milliseconds from a cold disk.
constexpr std::uint64_t kNumWeightSamples = 64;
constexpr std::uint64_t kWeightSampleBytes = 4096;
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxWidth = 1 << 20;

std::string shard_path(const std::string& prefix, std::int64_t shard, std::int64_t num_shards) {
  char suffix[64];
  std::snprintf(suffix, sizeof suffix, "-%05lld-of-%05lld.gguf", static_cast<long long>(shard + 1),
                static_cast<long long>(num_shards));
  return prefix + suffix;
}

// The first header and the paths of all shards, each checked.
std::vector<GgufHeader> open_shards(const std::string& path) {
  std::vector<GgufHeader> headers = {check_gguf(path)};
  const std::int64_t num_shards = headers[0].integer("split.count").value_or(1);
  const std::int64_t shard = headers[0].integer("split.no").value_or(0);
  if (num_shards <= 1) return headers;
  if (num_shards > kMaxLayers) {
    throw Error(ErrorCode::kCorrupt, path + ": key 'split.count' is " + std::to_string(num_shards) +
                                         "; at most " + std::to_string(kMaxLayers));
  }
  if (shard != 0) {
    throw Error(ErrorCode::kInvalidArgument, path + ": is shard " + std::to_string(shard + 1) +
                                                 " of " + std::to_string(num_shards) +
                                                 "; give the first one");
  }
  const std::string suffix = shard_path("", 0, num_shards);
  if (path.size() < suffix.size() ||
      path.compare(path.size() - suffix.size(), suffix.size(), suffix) != 0) {
    throw Error(ErrorCode::kInvalidArgument, path + ": is the first of " +
                                                 std::to_string(num_shards) +
                                                 " shards; its name must end in '" + suffix + "'");
  }
  const std::string prefix = path.substr(0, path.size() - suffix.size());
  for (std::int64_t i = 1; i < num_shards; ++i) {
    headers.push_back(check_gguf(shard_path(prefix, i, num_shards)));
  }
  return headers;
}

std::string hash_weights(const std::vector<GgufHeader>& headers) {
  Hasher hasher;
  std::vector<char> sample(kWeightSampleBytes);
  for (const GgufHeader& header : headers) {
    ByteReader reader(header.path);
    if (!reader.skip(std::min(header.data_offset, reader.size()))) continue;
    const std::uint64_t num_bytes = reader.remaining();
    const std::uint64_t stride = std::max(num_bytes / kNumWeightSamples, kWeightSampleBytes);
    for (std::uint64_t start = 0; start < num_bytes; start += stride) {
      const std::uint64_t here = std::min(kWeightSampleBytes, num_bytes - start);
      if (!reader.read(sample.data(), here)) break;
      hasher.update(sample.data(), here);
      if (!reader.skip(std::min(stride - here, reader.remaining()))) break;
    }
    hasher.update(&num_bytes, sizeof num_bytes);
  }
  return hasher.hex();
}

class ShapeReader {
 public:
  explicit ShapeReader(const GgufHeader& header) : header_(header) {
    const auto architecture = header.text("general.architecture");
    if (!architecture || architecture->empty()) {
      throw Error(ErrorCode::kCorrupt,
                  header.path + ": has no key 'general.architecture'; is it a language model?");
    }
    architecture_ = *architecture;
  }

  const std::string& architecture() const { return architecture_; }

  // In [1, limit]; `fallback` where the key is missing, an error when that is 0 too.
  std::int64_t value(const std::string& key, std::int64_t limit, std::int64_t fallback) const {
    const auto value = header_.integer(architecture_ + "." + key);
    return checked(key, value.value_or(fallback), 1, limit);
  }

  std::int64_t optional(const std::string& key) const {
    return header_.integer(architecture_ + "." + key).value_or(0);
  }

  bool has(const std::string& key) const {
    return header_.values.count(architecture_ + "." + key) != 0;
  }

  // One value a layer; 0: that layer has no attention.
  std::vector<std::int64_t> per_layer(const std::string& key) const {
    std::vector<std::int64_t> values = header_.integers(architecture_ + "." + key);
    for (const std::int64_t value : values) checked(key, value, 0, kMaxHeads);
    return values;
  }

 private:
  std::int64_t checked(const std::string& key, std::int64_t value, std::int64_t low,
                       std::int64_t high) const {
    if (value < low || value > high) {
      throw Error(ErrorCode::kCorrupt, header_.path + ": key '" + architecture_ + "." + key +
                                           "' is " + std::to_string(value) + "; it must be " +
                                           std::to_string(low) + " to " + std::to_string(high));
    }
    return value;
  }

  const GgufHeader& header_;
  std::string architecture_;
};

std::int64_t largest(const std::vector<std::int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

int count_attention_layers(const ShapeReader& shape, const std::vector<std::int64_t>& kv_heads) {
  const std::int64_t num_layers = shape.value("block_count", kMaxLayers, 0);
  // Layers for multi-token prediction and layers that read another layer's cache own none.
  std::int64_t with_cache = num_layers - shape.optional("nextn_predict_layers") -
                            shape.optional("attention.shared_kv_layers");
  if (kv_heads.size() > 1) {
    with_cache -= std::count(kv_heads.begin(), kv_heads.end(), 0);
  }
  return static_cast<int>(std::max<std::int64_t>(with_cache, 0));
}

}  // namespace

ModelFile open_model_file(const std::string& path) {
  const std::vector<GgufHeader> headers = open_shards(path);
  const ShapeReader shape(headers[0]);
  ModelFile model;
  model.path = path;
  if (shape.has("context_length")) {
    model.context_length = shape.value("context_length", INT32_MAX, 0);
  }
  model.has_latent_attention = shape.has("attention.kv_lora_rank");
  ModelFingerprint& fingerprint = model.fingerprint;
  fingerprint.architecture = shape.architecture();
  const std::int64_t width = shape.value("embedding_length", kMaxWidth, 0);
  const std::vector<std::int64_t> q_heads = shape.per_layer("attention.head_count");
  std::vector<std::int64_t> kv_heads = shape.per_layer("attention.head_count_kv");
  if (kv_heads.empty()) kv_heads = q_heads;
  fingerprint.num_q_heads = static_cast<int>(largest(q_heads));
  fingerprint.num_kv_heads = static_cast<int>(largest(kv_heads));
  fingerprint.num_layers = count_attention_layers(shape, kv_heads);
  if (fingerprint.num_q_heads > 0) {
    const std::int64_t head_dim = width / fingerprint.num_q_heads;
    fingerprint.head_dim_k =
        static_cast<int>(shape.value("attention.key_length", kMaxWidth, head_dim));
    fingerprint.head_dim_v =
        static_cast<int>(shape.value("attention.value_length", kMaxWidth, head_dim));
  }
  fingerprint.weights_hash = hash_weights(headers);
  return model;
}

void check_packed_cache_supports(const ModelFile& model) {
  const ModelFingerprint& shape = model.fingerprint;
  const std::string use_f16 = "; use --kv f16, q8_0 or q4_0 with it";
  if (model.has_latent_attention) {
    throw Error(ErrorCode::kUnsupported, model.path + ": architecture " + shape.architecture +
                                             " keeps a latent vector (MLA), not keys and values" +
                                             use_f16);
  }
  if (shape.num_kv_heads == 0 || shape.num_layers == 0) {
    throw Error(ErrorCode::kUnsupported, model.path + ": architecture " + shape.architecture +
                                             " has no attention layers with keys and values" +
                                             use_f16);
  }
  if (shape.num_q_heads % shape.num_kv_heads != 0) {
    throw Error(ErrorCode::kCorrupt, model.path + ": " + std::to_string(shape.num_q_heads) +
                                         " query heads are no multiple of " +
                                         std::to_string(shape.num_kv_heads) + " KV heads");
  }
  for (const int head_dim : {shape.head_dim_k, shape.head_dim_v}) {
    if (head_dim < kMinHeadDim || head_dim > kMaxHeadDim || head_dim % kHeadDimMultiple != 0) {
      throw Error(ErrorCode::kUnsupported, model.path + ": head size " + std::to_string(head_dim) +
                                               " is not supported (multiples of " +
                                               std::to_string(kHeadDimMultiple) + " from " +
                                               std::to_string(kMinHeadDim) + " to " +
                                               std::to_string(kMaxHeadDim) + ")" + use_f16);
    }
  }
}

}  // namespace oscar::eval
