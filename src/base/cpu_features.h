// What this processor and its operating system can run. Detected once.
#pragma once

#include <string>

namespace oscar {

struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false;
  bool avx512vbmi = false, avx512vnni = false, avx512bf16 = false;
  bool avxvnni = false;                // the 256-bit VNNI of processors without AVX-512
  bool neon = false, dotprod = false;  // AArch64

  // Names of those present, space-separated, for people: "avx2 fma f16c". Empty: none.
  std::string text() const;
};

// Thread-safe; all false where the processor is neither x86-64 nor AArch64.
const CpuFeatures& cpu_features() noexcept;

// The processor's own name ("AMD EPYC ..."); AArch64 has numbers instead ("AArch64 implementer 0x41
// part 0xd0c"). "unknown" where neither can be read.
std::string cpu_name();

}  // namespace oscar
