// The calibration artefact: what a method needs to know about one model. One safetensors file;
// docs/format.md lists its tensors. Data-free methods use the same structure, made
// in memory.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "format/quant_spec.h"
#include "format/rope_spec.h"

namespace oscar {

inline constexpr int kArtefactVersion = 1;

enum class Method : std::uint8_t {
#define OSCAR_METHOD(id, name) k##id,
#include "format/methods.inc"
#undef OSCAR_METHOD
};
const std::vector<Method>& all_methods();  // in the order of format/methods.inc
const char* method_name(Method method) noexcept;
// Throws Error(kInvalidArgument) listing the legal names.
Method method_from_name(const std::string& name);
bool is_method_name(const std::string& name);
std::string method_names();  // "naive, quarot, ..."

// What must agree between the artefact and the model it is used on.
struct ModelFingerprint {
  std::string architecture;  // GGUF general.architecture, e.g. "llama"
  int num_layers = 0;        // attention layers with a KV cache of their own
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  std::string weights_hash;  // hex XXH3-128 over sampled weight bytes; empty: unknown, not compared
  bool operator==(const ModelFingerprint&) const = default;
};

inline constexpr int kNumClipBits = 3;  // clip ratios are stored for 2, 3 and 4 bits
constexpr int clip_index(int bits) { return bits - 2; }

// One attention layer. Matrices are row-major [num_kv_heads][head_dim][head_dim]; rows are vectors:
// rotated = raw · R.
struct ArtefactLayer {
  int layer = 0;  // the model's layer index
  int num_kv_heads = 0, head_dim_k = 0, head_dim_v = 0;
  std::vector<float> k_transform;                     // R_K
  std::vector<float> k_transform_inverse_transposed;  // q̃ = q · this; empty when R_K is orthogonal
                                                      // (then it is R_K)
  std::vector<float> v_transform;  // R_V
  std::vector<float> v_inverse;    // o = õ · this; empty when orthogonal (then R_Vᵀ)
  std::vector<float> k_mean;       // [num_kv_heads][head_dim_k] mean key before RoPE; empty: none
  std::vector<float> v_mean;       // [num_kv_heads][head_dim_v]; empty: none
  int rope = -1;                   // index into Artefact::ropes; −1: static mean
  std::array<std::vector<float>, kNumClipBits> k_clip,
      v_clip;  // [num_kv_heads] clip ratio in (0, 1]; empty: 1 (no clip)
  std::vector<float> k_spectrum,
      v_spectrum;  // [num_kv_heads][head_dim] eigenvalues of C_Q, C_S, descending; empty: none
  float k_error = 0, v_error = 0;  // relative squared logit / output error measured on the
                                   // calibration rows, at the default bits
  // Bits of this layer where they are its own (a bit budget); 0: those of k_quant and v_quant. Both
  // sides or neither, in every layer or in none.
  int k_bits = 0, v_bits = 0;
  // [kNumClipBits] what the predictions lose, in nats a token, when this side alone is stored at 2,
  // 3 and 4 bits; empty: not measured. Every layer or none.
  std::vector<float> k_losses, v_losses;
};

struct Artefact {
  Method method = Method::kNaive;
  ModelFingerprint model;
  QuantSpec k_quant,
      v_quant;           // defaults; group_size is clamped to head_dim by the user of the artefact
  bool hadamard = true;  // the transforms hold H (and P) as their last factors
  bool bit_reversal = true;    // false: they hold H without P (no-p)
  bool key_smoothing = false;  // the transforms hold diag(1/s)
  std::vector<RopeSpec> ropes;
  std::vector<ArtefactLayer> layers;  // ascending `layer`
  std::map<std::string, std::string>
      info;  // calibration text hash, tokens used and asked for, date, version, seed, ...
};

// How a layer's sides are stored; group_size as the artefact has it.
QuantSpec key_quant(const Artefact& artefact, const ArtefactLayer& layer);
QuantSpec value_quant(const Artefact& artefact, const ArtefactLayer& layer);

// Loading reports the first real reason for refusal: names layer, head, tensor, value, what would
// be right. Checks version, basis, shapes, finiteness, orthogonality (max |R·Rᵀ − I| ≤
// kMaxOrthogonalityError where no inverse is stored; R·inverse otherwise), layer numbering. Throws
// Error(kIo | kCorrupt | kMismatch | kUnsupported).
inline constexpr double kMaxOrthogonalityError = 0.005;
Artefact load_artefact(const std::string& path);
Artefact parse_artefact(const std::uint8_t* bytes, std::uint64_t num_bytes,
                        const std::string& name);

// Writes to a temporary name beside `path` and renames when whole. Refuses what loading would
// refuse.
void save_artefact(const Artefact& artefact, const std::string& path);
// The bytes that save_artefact writes; `name` is what messages call them.
std::string serialize_artefact(const Artefact& artefact, const std::string& name);

// Throws Error(kMismatch) naming the first differing field, both values.
void check_fingerprint(const Artefact& artefact, const ModelFingerprint& model);

}  // namespace oscar
