// The `--kv` specification: f16 | q8_0 | q4_0 | METHOD | FILE, then ':' and comma-separated
// options.
//
//   k2v2 k3v2 k16v16 ...         bits of keys and values: 2, 3, 4, 16
//   bits=2.5                     stored bits a value, spent by layer and side (of a FILE)
//   sink=N recent=N              window in tokens (64, 256)
//   group=N                      channels a scale
//   no-u no-p no-hadamard no-clip no-mean  leave a part out
//   unbiased                     unbiased key scale
//   trellis                      trellis codes, of 2-bit sides without zero points
//   float                        attend codes in single precision
#pragma once

#include <optional>
#include <string>

#include "format/artefact.h"

namespace oscar {

inline constexpr int kDefaultSinkTokens = 64;
inline constexpr int kDefaultRecentTokens = 256;
inline constexpr int kMaxWindowTokens = 1 << 20;  // of sink=N and recent=N, each
inline constexpr double kMinBitBudget = 2, kMaxBitBudget = 16;

struct KvSpec {
  enum class Kind { kHostType, kMethod, kFile };
  Kind kind = Kind::kHostType;
  std::string text;                 // as given
  std::string host_type;            // kHostType: "f16", "q8_0", "q4_0": llama.cpp's own cache
  Method method = Method::kQuarot;  // kMethod
  std::string file;                 // kFile: path of an artefact
  std::optional<int> k_bits, v_bits, group_size;
  std::optional<double> bit_budget;  // bits=2.5; not together with k_bits
  int sink_tokens = kDefaultSinkTokens;
  int recent_tokens = kDefaultRecentTokens;
  bool no_eigenbasis = false, no_permutation = false;  // no-u, no-p
  bool no_hadamard = false, no_clip = false, no_mean = false, unbiased = false, force_float = false;
  bool trellis = false;

  // Takes back the options that leave a part of the transforms, clips or means out.
  void keep_all_parts() {
    no_eigenbasis = no_permutation = no_hadamard = no_clip = no_mean = false;
  }
};

// A name that is no type and no method is a FILE. A path with ':' in it is cut at the last ':' that
// is followed by options. Throws Error(kInvalidArgument) naming the option, its value, the legal
// ones.
KvSpec parse_kv_spec(const std::string& text);

}  // namespace oscar
