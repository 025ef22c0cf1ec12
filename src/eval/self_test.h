// Codec and attention of one kernel set against the fp64 reference, in a fraction of a second: what
// a machine is asked before it is trusted.
#pragma once

#include <string>

#include "kernels/kernels.h"

namespace oscar::eval {

struct SelfTestResult {
  bool passed = false;
  std::string text;  // what was compared and how far it lies off; on failure the first difference
};

// The set has to be supported on this machine.
SelfTestResult test_codec(const kernels::KernelSet& kernels);
SelfTestResult test_attention(const kernels::KernelSet& kernels);

}  // namespace oscar::eval
