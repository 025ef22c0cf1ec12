#include "methods/definition.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "format/plane_layout.h"

namespace oscar::methods {
namespace {

template <typename Numbers>
std::string list_text(const Numbers& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

bool contains(const std::vector<int>& numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

std::span<const float> clip_for(const std::array<std::vector<float>, kNumClipBits>& clip,
                                int bits) {
  if (bits == 16) return {};
  return clip[clip_index(bits)];
}

// What PlaneLayout::validate() checks for methods in pages.
void check_any_head_dim(const std::string& name, int head_dim) {
  if (head_dim >= kMinHeadDim && head_dim <= kMaxHeadDim && head_dim % kHeadDimMultiple == 0)
    return;
  throw Error(ErrorCode::kUnsupported,
              name + ": head size " + std::to_string(head_dim) + "; legal: multiples of " +
                  std::to_string(kHeadDimMultiple) + " from " + std::to_string(kMinHeadDim) +
                  " to " + std::to_string(kMaxHeadDim));
}

// Trellis codes take the place of four symmetric levels in a page; nothing else may be another's.
void check_codebook(const Definition& d, const std::string& name, const char* side, Codebook right,
                    Codebook found) {
  if (found == right) return;
  const bool takes_trellis = d.packed() && right == Codebook::kSymmetric;
  if (takes_trellis && found == Codebook::kTrellis) return;
  throw Error(ErrorCode::kCorrupt, name + ": " + side + " have codebook " + codebook_name(found) +
                                       "; legal: " + codebook_name(right) +
                                       (takes_trellis ? ", trellis" : "") +
                                       ": the artefact is another method's");
}

}  // namespace

const Definition& definition(Method method) {
  switch (method) {
#define OSCAR_METHOD(id, name) \
  case Method::k##id:          \
    return k##id;
#include "format/methods.inc"
#undef OSCAR_METHOD
  }
  throw Error(ErrorCode::kInvalidArgument,
              "method " + std::to_string(static_cast<int>(method)) + " is unknown");
}

void check(Method method, const Artefact& artefact) {
  const Definition& d = definition(method);
  const std::string name = method_name(method);
  const auto check_bits = [&](const char* side, int bits) {
    if (contains(d.legal_bits, bits)) return;
    throw Error(ErrorCode::kInvalidArgument, name + " stores no " + side + " at " +
                                                 std::to_string(bits) +
                                                 " bits; legal: " + list_text(d.legal_bits));
  };
  check_codebook(d, name, "keys", d.k.codebook, artefact.k_quant.codebook);
  check_codebook(d, name, "values", d.v.codebook, artefact.v_quant.codebook);
  check_bits("keys", artefact.k_quant.bits);
  check_bits("values", artefact.v_quant.bits);
  for (const ArtefactLayer& layer : artefact.layers) {
    check_bits("keys", key_quant(artefact, layer).bits);
    check_bits("values", value_quant(artefact, layer).bits);
  }
  if (!d.token_groups.empty() && !contains(d.token_groups, artefact.k_quant.group_size)) {
    throw Error(ErrorCode::kInvalidArgument,
                name + ": group=" + std::to_string(artefact.k_quant.group_size) +
                    " tokens; legal: " + list_text(d.token_groups));
  }
  for (const ArtefactLayer& layer : artefact.layers) {
    for (const int head_dim : {layer.head_dim_k, layer.head_dim_v}) {
      if (!d.packed()) check_any_head_dim(name, head_dim);
      if (d.check_head_dim != nullptr) d.check_head_dim(head_dim);
    }
  }
}

std::unique_ptr<RowCoder> make_key_coder(const Artefact& artefact, const ArtefactLayer& layer,
                                         std::shared_ptr<const RopeTable> rope) {
  const Definition& d = definition(artefact.method);
  if (d.packed()) return nullptr;
  check(artefact.method, artefact);
  if (layer.rope < 0) rope = nullptr;
  const QuantSpec quant = key_quant(artefact, layer);
  return d.key_coder({layer.num_kv_heads, layer.head_dim_k, quant,
                      clip_for(layer.k_clip, quant.bits), layer.k_mean, std::move(rope)});
}

std::unique_ptr<RowCoder> make_value_coder(const Artefact& artefact, const ArtefactLayer& layer) {
  const Definition& d = definition(artefact.method);
  if (d.packed()) return nullptr;
  check(artefact.method, artefact);
  const QuantSpec quant = value_quant(artefact, layer);
  return d.value_coder({layer.num_kv_heads, layer.head_dim_v, quant,
                        clip_for(layer.v_clip, quant.bits), layer.v_mean, nullptr});
}

SideBytes bytes_per_token(const Artefact& artefact, const ArtefactLayer& layer) {
  const Definition& d = definition(artefact.method);
  if (d.packed()) {
    const auto plane = [&](int head_dim, QuantSpec quant) {
      quant.group_size = std::min(quant.group_size, head_dim);
      const PlaneLayout layout{head_dim, quant};
      return static_cast<double>(layer.num_kv_heads * layout.plane_bytes()) / kPageSize;
    };
    return {plane(layer.head_dim_k, key_quant(artefact, layer)),
            plane(layer.head_dim_v, value_quant(artefact, layer))};
  }
  const auto keys = make_key_coder(artefact, layer, nullptr);
  const auto values = make_value_coder(artefact, layer);
  return {static_cast<double>(keys->group_bytes()) / keys->group_tokens(),
          static_cast<double>(values->group_bytes())};
}

}  // namespace oscar::methods
