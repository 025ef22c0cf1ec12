// What a method is: one file beside this one, one line in format/methods.inc. docs/methods.md
// describes each, and shows how to add one.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/artefact.h"
#include "format/quant_spec.h"
#include "kernels/rope_table.h"
#include "methods/row_coder.h"

namespace oscar::methods {

// Transforms that calibration tries on the sampled rows.
enum class KeyBasis {
  kRotated,   // U·H·P, U the eigenbasis of C_Q
  kHadamard,  // H·P
  kSmoothed,  // diag(1/s)·H·P, queries diag(s)·H·P
};
enum class ValueBasis {
  kRotated,   // U·H·P, U the eigenbasis of C_S
  kHadamard,  // H·P
};

// How calibration fits a method that needs statistics; the first candidate is the default.
struct Recipe {
  std::vector<KeyBasis> key_candidates;
  std::vector<ValueBasis> value_candidates;
  bool subtract_key_mean = false;
  bool offer_value_mean = false;  // a layer subtracts it where that clearly lowers its error
};

// What a coder is made from: one side of one layer.
struct CoderInput {
  int num_kv_heads = 0, head_dim = 0;
  QuantSpec quant;                        // group_size as asked for; see Definition
  std::span<const float> clip;            // [num_kv_heads], or empty: none
  std::span<const float> mean;            // [num_kv_heads][head_dim] the artefact's, or empty
  std::shared_ptr<const RopeTable> rope;  // null: not known, or values
};
using MakeCoder = std::unique_ptr<RowCoder> (*)(const CoderInput& input);
using MakeRotation = std::vector<float> (*)(int head_dim);  // R, as in methods/hadamard.h

struct Definition {
  const char* summary = "";  // one line for people
  // Bits, levels and scale of each side. group_size is a wish: channels that share a scale, at most
  // the head size; for keys coded in groups of tokens, the tokens.
  QuantSpec k, v;
  // Tokens of a key group that `group=N` may choose; empty: keys are coded token by token, and
  // group=N means channels.
  std::vector<int> token_groups = {};
  bool values_follow_group = false;  // then group=N also means at most N channels of the values
  bool takes_group = true;           // false: a norm for the whole row, so that group=N is refused
  std::vector<int> legal_bits = {2, 3, 4, 16};  // of both sides

  // The rotation of each side, null for none; calibration by a recipe replaces it.
  MakeRotation k_rotation = nullptr, v_rotation = nullptr;
  // The rotations end in a Hadamard, which `no-hadamard` takes away.
  bool hadamard = false;

  // Needs statistics of the model: by the recipe, or, without candidates, of the mean key before
  // RoPE alone.
  bool calibrated = false;
  Recipe recipe = {};
  // Where there is no recipe: the clip ratio for 2, 3 and 4 bits; 1: none.
  std::array<float, kNumClipBits> clip = {1, 1, 1};

  // Null: both sides lie in packed planes. Otherwise both are set.
  MakeCoder key_coder = nullptr, value_coder = nullptr;
  // Throws Error(kUnsupported) naming the method and the head size where it cannot do it; null:
  // every head size that the cache takes. For keys and for values.
  void (*check_head_dim)(int head_dim) = nullptr;

  bool needs_rope = false;  // stores keys before RoPE

  bool packed() const { return key_coder == nullptr; }
  bool has_recipe() const { return !recipe.key_candidates.empty(); }
};

#define OSCAR_METHOD(id, name) extern const Definition k##id;
#include "format/methods.inc"
#undef OSCAR_METHOD

const Definition& definition(Method method);

// Throws Error naming the method, what it cannot do, and what it can.
void check(Method method, const Artefact& artefact);

// Null where the method's sides are packed. `rope` may be null; see CoderInput.
std::unique_ptr<RowCoder> make_key_coder(const Artefact& artefact, const ArtefactLayer& layer,
                                         std::shared_ptr<const RopeTable> rope);
std::unique_ptr<RowCoder> make_value_coder(const Artefact& artefact, const ArtefactLayer& layer);

// Bytes a token of full groups takes, of all KV heads of the layer, one side; for packed sides too.
struct SideBytes {
  double keys = 0, values = 0;
};
SideBytes bytes_per_token(const Artefact& artefact, const ArtefactLayer& layer);

}  // namespace oscar::methods
