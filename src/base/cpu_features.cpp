#include "base/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <array>
#include <cstring>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <cstdint>
#include <cstdio>
#endif

namespace oscar {

std::string CpuFeatures::text() const {
  const struct {
    const char* name;
    bool present;
  } all[] = {{"avx2", avx2},
             {"fma", fma},
             {"f16c", f16c},
             {"avxvnni", avxvnni},
             {"avx512f", avx512f},
             {"avx512bw", avx512bw},
             {"avx512dq", avx512dq},
             {"avx512vl", avx512vl},
             {"avx512vbmi", avx512vbmi},
             {"avx512vnni", avx512vnni},
             {"avx512bf16", avx512bf16},
             {"neon", neon},
             {"dotprod", dotprod}};
  std::string text;
  for (const auto& feature : all) {
    if (!feature.present) continue;
    if (!text.empty()) text += ' ';
    text += feature.name;
  }
  return text;
}

#if defined(__x86_64__)
namespace {

constexpr unsigned kLeafFeatures = 1, kLeafExtended = 7, kLeafBrand = 0x80000002u;
// XCR0: the register states that the operating system saves.
constexpr unsigned kStateAvx = 0x06, kStateAvx512 = 0xe6;

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d) == 0) r = {};
  return r;
}

constexpr bool bit(unsigned word, int index) { return ((word >> index) & 1u) != 0; }

unsigned saved_states() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

CpuFeatures detect() {
  CpuFeatures f;
  const Registers basic = cpuid(kLeafFeatures, 0);
  const bool has_xgetbv = bit(basic.c, 27);
  if (!has_xgetbv) return f;
  const unsigned states = saved_states();
  const Registers extended = cpuid(kLeafExtended, 0), more = cpuid(kLeafExtended, 1);
  if ((states & kStateAvx) == kStateAvx) {
    f.fma = bit(basic.c, 12);
    f.f16c = bit(basic.c, 29);
    f.avx2 = bit(extended.b, 5);
    f.avxvnni = bit(more.a, 4);
  }
  if ((states & kStateAvx512) == kStateAvx512) {
    f.avx512f = bit(extended.b, 16);
    f.avx512dq = bit(extended.b, 17);
    f.avx512bw = bit(extended.b, 30);
    f.avx512vl = bit(extended.b, 31);
    f.avx512vbmi = bit(extended.c, 1);
    f.avx512vnni = bit(extended.c, 11);
    f.avx512bf16 = bit(more.a, 5);
  }
  return f;
}

}  // namespace

std::string cpu_name() {
  std::array<char, 49> name{};
  for (unsigned part = 0; part < 3; ++part) {
    const Registers r = cpuid(kLeafBrand + part, 0);
    std::memcpy(name.data() + 16 * part, &r, sizeof r);
  }
  std::string text(name.data());
  const auto first = text.find_first_not_of(' ');
  if (first == std::string::npos) return "unknown";
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}
#elif defined(__aarch64__) && defined(__linux__)
namespace {

CpuFeatures detect() {
  const unsigned long capabilities = getauxval(AT_HWCAP);
  CpuFeatures f;
  f.neon = (capabilities & HWCAP_ASIMD) != 0;
  f.dotprod = (capabilities & HWCAP_ASIMDDP) != 0;
  return f;
}

}  // namespace

std::string cpu_name() {
  if ((getauxval(AT_HWCAP) & HWCAP_CPUID) == 0) return "unknown";
  std::uint64_t main_id;  // the kernel answers this read for user programs
  __asm__("mrs %0, MIDR_EL1" : "=r"(main_id));
  char text[64];
  std::snprintf(text, sizeof text, "AArch64 implementer 0x%02x part 0x%03x",
                static_cast<unsigned>(main_id >> 24 & 0xff),
                static_cast<unsigned>(main_id >> 4 & 0xfff));
  return text;
}
#else
namespace {
CpuFeatures detect() { return {}; }
}  // namespace

std::string cpu_name() { return "unknown"; }
#endif

const CpuFeatures& cpu_features() noexcept {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace oscar
