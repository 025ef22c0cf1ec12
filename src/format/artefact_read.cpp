#include <cstring>
#include <set>

#include "base/bf16.h"
#include "base/error.h"
#include "base/text.h"
#include "format/artefact.h"
#include "format/artefact_check.h"
#include "format/artefact_fields.h"
#include "format/artefact_file.h"
#include "format/artefact_hash.h"
#include "format/artefact_metadata.h"
#include "format/artefact_probe.h"
#include "format/safetensors.h"

namespace oscar {
namespace {

using Shape = std::vector<std::uint64_t>;

// Copies of matrices that one file may ask for by storing one matrix for all heads of a layer.
constexpr std::uint64_t kMaxSharedBytes = std::uint64_t{1} << 30;

class TensorReader {
 public:
  TensorReader(const Safetensors& file, const std::string& name) : file_(file), name_(name) {}

  // Null: there is none.
  const TensorView* find(const std::string& tensor) {
    const auto found = file_.tensors.find(tensor);
    if (found == file_.tensors.end()) return nullptr;
    seen_.insert(tensor);
    return &found->second;
  }

  const TensorView& get(const std::string& tensor) {
    const TensorView* view = find(tensor);
    if (view == nullptr) fail("tensor " + in_quotes(tensor) + " is missing");
    return *view;
  }

  void check_shape(const std::string& tensor, const TensorView& view, const Shape& shape,
                   const std::string& why) const {
    if (view.shape != shape) {
      fail("tensor " + in_quotes(tensor) + " has shape " + shape_text(view.shape) +
           "; right: " + shape_text(shape) + why);
    }
  }

  std::vector<float> floats(const std::string& tensor, const TensorView& view) const {
    std::vector<float> values(view.bytes.size() / dtype_bytes(view.dtype));
    if (view.dtype == DType::kF32) {
      if (!values.empty()) std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
    } else if (view.dtype == DType::kBF16) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        bf16_t bits;
        std::memcpy(&bits, view.bytes.data() + i * sizeof bits, sizeof bits);
        values[i] = bf16_to_float(bits);
      }
    } else {
      fail("tensor " + in_quotes(tensor) + " is " + dtype_name(view.dtype) +
           "; right: F32 or BF16");
    }
    return values;
  }

  std::vector<float> floats(const std::string& tensor, const Shape& shape, const std::string& why) {
    const TensorView& view = get(tensor);
    check_shape(tensor, view, shape, why);
    return floats(tensor, view);
  }

  void read_layer(ArtefactLayer* layer) {
    const std::string heads =
        " for num_kv_heads " + std::to_string(layer->num_kv_heads) + " of the model";
    visit_layer_fields(*layer, [&](const LayerField& field, std::vector<float>& values) {
      const std::string tensor = layer_tensor_name(layer->layer, field.name);
      const TensorView* view = field.required ? &get(tensor) : find(tensor);
      if (view == nullptr) return;
      const Shape shape = field.shape(layer->num_kv_heads);
      const bool shared = field.kind == LayerField::Kind::kMatrix &&
                          view->shape == Shape(shape.begin() + 1, shape.end());
      if (!shared) check_shape(tensor, *view, shape, heads);
      values = floats(tensor, *view);
      if (shared) repeat(tensor, layer->num_kv_heads, &values);
    });
  }

  // Everything in the file must have been asked for.
  void check_all_seen(const Artefact& artefact) const {
    for (const auto& [tensor, view] : file_.tensors) {
      if (seen_.count(tensor) != 0) continue;
      fail("tensor " + in_quotes(tensor) + " is unknown: the artefact lists layers " +
           std::to_string(artefact.layers.front().layer) + " to " +
           std::to_string(artefact.layers.back().layer) + " and " +
           std::to_string(artefact.ropes.size()) + " ropes");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kCorrupt, in_quotes(name_) + ": " + what);
  }

  void repeat(const std::string& tensor, int num_kv_heads, std::vector<float>* values) {
    const std::size_t one = values->size();
    shared_bytes_ += one * sizeof(float) * static_cast<std::uint64_t>(num_kv_heads);
    if (shared_bytes_ >= kMaxSharedBytes) {
      fail("tensor " + in_quotes(tensor) + ": matrices shared by " + std::to_string(num_kv_heads) +
           " heads take at least " + std::to_string(kMaxSharedBytes) +
           " bytes in all; store one a head");
    }
    values->resize(one * static_cast<std::size_t>(num_kv_heads));
    for (std::size_t i = one; i < values->size(); ++i) (*values)[i] = (*values)[i - one];
  }

  const Safetensors& file_;
  const std::string& name_;
  std::set<std::string> seen_;
  std::uint64_t shared_bytes_ = 0;
};

std::vector<float> read_probes(const ArtefactLayer& layer, Side side, TensorReader* reader) {
  const int dim = side == Side::kKey ? layer.head_dim_k : layer.head_dim_v;
  const std::string field = std::string(side_name(side)) + "_probe";
  return reader->floats(
      layer_tensor_name(layer.layer, field),
      {static_cast<std::uint64_t>(layer.num_kv_heads), static_cast<std::uint64_t>(dim)},
      " for num_kv_heads " + std::to_string(layer.num_kv_heads) + " of the model");
}

// Stored: the probes are in the file and must fit. Absent: there are none.
enum class Probing { kStored, kAbsent };

Artefact read_artefact(const Safetensors& file, const std::string& name, Probing probing) {
  Artefact artefact = parse_artefact_metadata(file.metadata, file.tensors.size(), name);
  TensorReader reader(file, name);
  for (std::size_t r = 0; r < artefact.ropes.size(); ++r) {
    const std::string tensor = rope_tensor_name(r);
    const TensorView& view = reader.get(tensor);
    reader.check_shape(tensor, view, {view.shape.empty() ? 0 : view.shape[0]},
                       ", one frequency a pair");
    artefact.ropes[r].inv_freq = reader.floats(tensor, view);
  }
  struct Probes {
    std::vector<float> k, v;
  };
  std::vector<Probes> probes;
  for (ArtefactLayer& layer : artefact.layers) {
    if (probing == Probing::kStored) {
      probes.push_back(
          {read_probes(layer, Side::kKey, &reader), read_probes(layer, Side::kValue, &reader)});
    }
    reader.read_layer(&layer);
  }
  const std::vector<float> errors =
      reader.floats(kErrorsTensor, {artefact.layers.size(), 2}, ", k and v of each layer");
  for (std::size_t i = 0; i < artefact.layers.size(); ++i) {
    artefact.layers[i].k_error = errors[2 * i];
    artefact.layers[i].v_error = errors[2 * i + 1];
  }
  if (reader.find(kLossesTensor) != nullptr) {
    const std::vector<float> losses = reader.floats(
        kLossesTensor, {artefact.layers.size(), 2, kNumClipBits}, ", k and v of each layer");
    auto next = losses.begin();
    for (ArtefactLayer& layer : artefact.layers) {
      for (std::vector<float>* side : {&layer.k_losses, &layer.v_losses}) {
        side->assign(next, next + kNumClipBits);
        next += kNumClipBits;
      }
    }
  }
  reader.check_all_seen(artefact);
  check_artefact(artefact, name);
  for (std::size_t i = 0; i < probes.size(); ++i) {
    check_probes(artefact.layers[i], Side::kKey, probes[i].k, name);
    check_probes(artefact.layers[i], Side::kValue, probes[i].v, name);
  }
  // Last, so that what is plainly wrong is named first. The hash covers the probes.
  if (probing == Probing::kStored) check_content_hash(file, name);
  return artefact;
}

}  // namespace

Artefact parse_artefact(const std::uint8_t* bytes, std::uint64_t num_bytes,
                        const std::string& name) {
  return read_artefact(parse_safetensors({bytes, num_bytes}, name), name, Probing::kStored);
}

Artefact artefact_from_tensors(const Safetensors& file, const std::string& name) {
  return read_artefact(file, name, Probing::kAbsent);
}

}  // namespace oscar
