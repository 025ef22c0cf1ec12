#include "format/artefact_metadata.h"

#include <array>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "format/artefact_check.h"
#include "format/strict_json.h"

namespace oscar {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "oscar-artefact";
constexpr const char* kBasis = "after_rope";
constexpr const char* kConvention = "rotated = raw * R";
constexpr std::array kCodebooks = {codebook_name(Codebook::kAffine),
                                   codebook_name(Codebook::kSymmetric),
                                   codebook_name(Codebook::kTrellis)};
constexpr std::array kScaleFits = {"plain", "unbiased", "least_squares"};
constexpr std::array kPairings = {"half_split", "interleaved"};
constexpr std::array kBooleans = {"false", "true"};
constexpr const char* kBitReversal = "bit_reversal";  // written where it is false
constexpr const char* kLayerBits = "layer_bits";      // written where layers have bits of their own
constexpr std::array kKeys = {
    "basis",    "bit_reversal", "content_hash", "convention",    "format",     "format_version",
    "hadamard", "info",         "k_quant",      "key_smoothing", "layer_bits", "layer_ropes",
    "layers",   "method",       "model",        "ropes",         "v_quant"};

json quant_json(const QuantSpec& quant) {
  return {{"bits", quant.bits},
          {"group_size", quant.group_size},
          {"codebook", codebook_name(quant.codebook)},
          {"scale_fit", kScaleFits.at(static_cast<std::size_t>(quant.scale_fit))}};
}

class Reader {
 public:
  Reader(const Metadata& metadata, std::size_t num_tensors, const std::string& name)
      : metadata_(metadata), num_tensors_(num_tensors), name_(name) {}

  Artefact read() {
    if (metadata_.count("format") == 0 || text("format") != kFormat) {
      fail(metadata_.count("format") == 0 ? std::string("it has no metadata 'format'")
                                          : "metadata 'format' is " + in_quotes(text("format")),
           std::string("'") + kFormat + "': this is no calibration artefact");
    }
    if (const std::string version = std::to_string(kArtefactVersion);
        text("format_version") != version) {
      throw Error(ErrorCode::kUnsupported, in_quotes(name_) + ": format_version " +
                                               in_quotes(text("format_version")) +
                                               " is unknown; this build reads version " + version);
    }
    must_be("basis", kBasis);
    must_be("convention", kConvention);
    for (const auto& [key, value] : metadata_) one_of("metadata key", key, kKeys);
    read_method();
    read_model();
    artefact_.k_quant = quant("k_quant");
    artefact_.v_quant = quant("v_quant");
    artefact_.hadamard = one_of("metadata 'hadamard'", text("hadamard"), kBooleans) != 0;
    artefact_.key_smoothing =
        one_of("metadata 'key_smoothing'", text("key_smoothing"), kBooleans) != 0;
    if (metadata_.count(kBitReversal) != 0) {
      artefact_.bit_reversal =
          one_of("metadata 'bit_reversal'", text(kBitReversal), kBooleans) != 0;
    }
    check_artefact_model(artefact_, name_);
    read_ropes();
    read_layers();
    read_layer_bits();
    read_info();
    return std::move(artefact_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& right) const {
    throw Error(ErrorCode::kCorrupt, in_quotes(name_) + ": " + what + "; right: " + right);
  }

  const std::string& text(const std::string& key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) {
      throw Error(ErrorCode::kCorrupt, in_quotes(name_) + ": metadata '" + key + "' is missing");
    }
    return found->second;
  }

  void must_be(const std::string& key, const std::string& right) const {
    if (text(key) != right) {
      throw Error(ErrorCode::kUnsupported, in_quotes(name_) + ": metadata '" + key + "' is " +
                                               in_quotes(text(key)) + "; right: '" + right + "'");
    }
  }

  template <std::size_t kSize>
  std::size_t one_of(const std::string& what, std::string_view value,
                     const std::array<const char*, kSize>& legal) const {
    std::string list;
    for (std::size_t i = 0; i < kSize; ++i) {
      if (value == legal[i]) return i;
      list += (i > 0 ? ", " : "") + std::string(legal[i]);
    }
    fail(what + " is " + in_quotes(value), "one of " + list);
  }

  // A JSON value of the given kind, whose object, if it is one, has exactly the given members.
  json structure(const std::string& key, json::value_t kind,
                 std::initializer_list<const char*> members = {}) const {
    json value = parse_strict_json(text(key), in_quotes(name_) + ": metadata '" + key + "'");
    if (value.type() != kind) {
      fail("metadata '" + key + "' is " + in_quotes(text(key)),
           kind == json::value_t::array ? "a JSON array" : "a JSON object");
    }
    if (members.size() > 0) exact_members(key, value, members);
    return value;
  }

  void exact_members(const std::string& key, const json& object,
                     std::initializer_list<const char*> members) const {
    for (const char* member : members) {
      if (!object.contains(member)) {
        fail("metadata '" + key + "' has no '" + member + "'", "a value");
      }
    }
    for (const auto& [member, value] : object.items()) {
      bool known = false;
      for (const char* legal : members) known = known || member == legal;
      if (!known)
        fail("metadata '" + key + "' has the unknown " + in_quotes(member), "no such entry");
    }
  }

  int integer(const std::string& where, const json& value, int min, int max) const {
    // Whole numbers from 2^63 on, which `value < min` would take for negative ones.
    const bool huge =
        value.is_number_unsigned() && std::cmp_greater(value.get<std::uint64_t>(), max);
    if (!value.is_number_integer() || huge || value < min || value > max) {
      fail(where + " is " + in_quotes(value.dump()),
           "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
    }
    return value.get<int>();
  }

  std::string string(const std::string& where, const json& value) const {
    if (!value.is_string()) fail(where + " is " + in_quotes(value.dump()), "a text");
    return value.get<std::string>();
  }

  void read_method() {
    const std::string& method = text("method");
    try {
      artefact_.method = method_from_name(method);
    } catch (const Error& error) {
      throw Error(ErrorCode::kUnsupported, in_quotes(name_) + ": " + error.what());
    }
  }

  void read_model() {
    const json model = structure("model", json::value_t::object,
                                 {"architecture", "num_layers", "num_q_heads", "num_kv_heads",
                                  "head_dim_k", "head_dim_v", "weights_hash"});
    const auto number = [&](const char* key, int max) {
      return integer(std::string("model's ") + key, model[key], 1, max);
    };
    artefact_.model.architecture = string("model's architecture", model["architecture"]);
    artefact_.model.weights_hash = string("model's weights_hash", model["weights_hash"]);
    artefact_.model.num_layers = number("num_layers", kMaxLayers);
    artefact_.model.num_q_heads = number("num_q_heads", kMaxHeads);
    artefact_.model.num_kv_heads = number("num_kv_heads", kMaxHeads);
    artefact_.model.head_dim_k = number("head_dim_k", kMaxHeadDim);
    artefact_.model.head_dim_v = number("head_dim_v", kMaxHeadDim);
  }

  QuantSpec quant(const std::string& key) const {
    const json value =
        structure(key, json::value_t::object, {"bits", "group_size", "codebook", "scale_fit"});
    QuantSpec quant;
    quant.bits = integer(key + "'s bits", value["bits"], 2, 16);
    quant.group_size = integer(key + "'s group_size", value["group_size"], 1, kMaxHeadDim);
    quant.codebook = static_cast<Codebook>(
        one_of(key + "'s codebook", string(key + "'s codebook", value["codebook"]), kCodebooks));
    quant.scale_fit = static_cast<ScaleFit>(
        one_of(key + "'s scale_fit", string(key + "'s scale_fit", value["scale_fit"]), kScaleFits));
    return quant;
  }

  void read_ropes() {
    for (const json& entry : structure("ropes", json::value_t::array)) {
      if (!entry.is_object()) fail("a rope is " + in_quotes(entry.dump()), "a JSON object");
      exact_members("ropes", entry, {"pairing", "magnitude"});
      if (!entry["magnitude"].is_number()) {
        fail("a rope's magnitude is " + in_quotes(entry["magnitude"].dump()), "a number");
      }
      RopeSpec rope;
      rope.pairing = static_cast<RopePairing>(
          one_of("a rope's pairing", string("a rope's pairing", entry["pairing"]), kPairings));
      rope.magnitude = static_cast<float>(entry["magnitude"].get<double>());
      artefact_.ropes.push_back(rope);
    }
  }

  void read_layers() {
    const json layers = structure("layers", json::value_t::array);
    const json ropes = structure("layer_ropes", json::value_t::array);
    const auto count = static_cast<std::size_t>(artefact_.model.num_layers);
    if (count > num_tensors_) {
      fail("num_layers is " + std::to_string(count) + ", but the file has " +
               std::to_string(num_tensors_) + " tensors",
           "several tensors a layer");
    }
    for (const json* list : {&layers, &ropes}) {
      if (list->size() != count) {
        fail(std::string("metadata '") + (list == &layers ? "layers" : "layer_ropes") + "' lists " +
                 std::to_string(list->size()) + " layers",
             "num_layers, " + std::to_string(count));
      }
    }
    int previous = -1;
    for (std::size_t i = 0; i < count; ++i) {
      ArtefactLayer layer;
      layer.layer = integer("an entry of metadata 'layers'", layers[i], 0, kMaxLayers - 1);
      if (layer.layer <= previous) {
        fail("metadata 'layers' has " + std::to_string(layer.layer) + " after " +
                 std::to_string(previous),
             "ascending, each layer once");
      }
      previous = layer.layer;
      layer.rope = integer("the rope of layer " + std::to_string(layer.layer), ropes[i], -1,
                           static_cast<int>(artefact_.ropes.size()) - 1);
      layer.num_kv_heads = artefact_.model.num_kv_heads;
      layer.head_dim_k = artefact_.model.head_dim_k;
      layer.head_dim_v = artefact_.model.head_dim_v;
      artefact_.layers.push_back(std::move(layer));
    }
  }

  // [[bits of keys, bits of values], …] in the order of `layers`; which bits are legal is checked
  // with the rest.
  void read_layer_bits() {
    if (metadata_.count(kLayerBits) == 0) return;
    const json list = structure(kLayerBits, json::value_t::array);
    if (list.size() != artefact_.layers.size()) {
      fail("metadata 'layer_bits' lists " + std::to_string(list.size()) + " layers",
           "num_layers, " + std::to_string(artefact_.layers.size()));
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      ArtefactLayer& layer = artefact_.layers[i];
      const std::string where = "layer_bits of layer " + std::to_string(layer.layer);
      if (!list[i].is_array() || list[i].size() != 2) {
        fail(where + " is " + in_quotes(list[i].dump()), "[bits of keys, bits of values]");
      }
      layer.k_bits = integer(where, list[i][0], 2, 16);
      layer.v_bits = integer(where, list[i][1], 2, 16);
    }
  }

  void read_info() {
    const json info = structure("info", json::value_t::object);
    for (const auto& [key, value] : info.items()) {
      artefact_.info[key] = string("info " + in_quotes(key), value);
    }
  }

  const Metadata& metadata_;
  std::size_t num_tensors_;
  const std::string& name_;
  Artefact artefact_;
};

}  // namespace

Metadata artefact_metadata(const Artefact& artefact) {
  const ModelFingerprint& model = artefact.model;
  const json model_json = {
      {"architecture", model.architecture}, {"num_layers", model.num_layers},
      {"num_q_heads", model.num_q_heads},   {"num_kv_heads", model.num_kv_heads},
      {"head_dim_k", model.head_dim_k},     {"head_dim_v", model.head_dim_v},
      {"weights_hash", model.weights_hash}};
  json ropes = json::array(), layers = json::array(), layer_ropes = json::array();
  json layer_bits = json::array();
  for (const RopeSpec& rope : artefact.ropes) {
    ropes.push_back({{"pairing", kPairings.at(static_cast<std::size_t>(rope.pairing))},
                     {"magnitude", rope.magnitude}});
  }
  for (const ArtefactLayer& layer : artefact.layers) {
    layers.push_back(layer.layer);
    layer_ropes.push_back(layer.rope);
    layer_bits.push_back({layer.k_bits, layer.v_bits});
  }
  Metadata metadata;
  if (!artefact.bit_reversal) metadata[kBitReversal] = kBooleans[0];
  if (!artefact.layers.empty() && artefact.layers.front().k_bits != 0) {
    metadata[kLayerBits] = layer_bits.dump();
  }
  try {
    metadata.merge(Metadata{{"format", kFormat},
                            {"format_version", std::to_string(kArtefactVersion)},
                            {"basis", kBasis},
                            {"convention", kConvention},
                            {"method", method_name(artefact.method)},
                            {"model", model_json.dump()},
                            {"k_quant", quant_json(artefact.k_quant).dump()},
                            {"v_quant", quant_json(artefact.v_quant).dump()},
                            {"hadamard", kBooleans[artefact.hadamard]},
                            {"key_smoothing", kBooleans[artefact.key_smoothing]},
                            {"ropes", ropes.dump()},
                            {"layers", layers.dump()},
                            {"layer_ropes", layer_ropes.dump()},
                            {"info", json(artefact.info).dump()}});
  } catch (const json::type_error&) {
    throw Error(ErrorCode::kInvalidArgument,
                "the artefact's architecture or one of its info texts is not UTF-8");
  }
  return metadata;
}

Artefact parse_artefact_metadata(const Metadata& metadata, std::size_t num_tensors,
                                 const std::string& name) {
  return Reader(metadata, num_tensors, name).read();
}

}  // namespace oscar
