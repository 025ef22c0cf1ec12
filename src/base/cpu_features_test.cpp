#include "base/cpu_features.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

namespace oscar {
namespace {

#if defined(__aarch64__)
constexpr char kFlagsField[] = "Features";
#else
constexpr char kFlagsField[] = "flags";
#endif

// kFlagsField and "model name" of the first processor as the kernel reports them.
std::string cpuinfo(const std::string& field) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with(field) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

TEST(CpuFeatures, AgreeWithTheKernel) {
  const std::string flags = " " + cpuinfo(kFlagsField) + " ";
  // Emulators may show the host's file.
  if (flags == "  ") GTEST_SKIP() << "no " << kFlagsField << " in /proc/cpuinfo";
  const CpuFeatures& f = cpu_features();
  const std::map<std::string, bool> detected = {{"avx2", f.avx2},
                                                {"fma", f.fma},
                                                {"f16c", f.f16c},
                                                {"avx512f", f.avx512f},
                                                {"avx512bw", f.avx512bw},
                                                {"avx512dq", f.avx512dq},
                                                {"avx512vl", f.avx512vl},
                                                {"avx512vbmi", f.avx512vbmi},
                                                {"avx512_vnni", f.avx512vnni},
                                                {"avx512_bf16", f.avx512bf16},
                                                {"avx_vnni", f.avxvnni},
                                                {"asimd", f.neon},
                                                {"asimddp", f.dotprod}};
  for (const auto& [flag, present] : detected) {
    EXPECT_EQ(present, flags.find(" " + flag + " ") != std::string::npos) << flag;
  }
}

TEST(CpuFeatures, TextListsWhatIsPresent) {
  CpuFeatures none;
  EXPECT_EQ(none.text(), "");
  CpuFeatures some;
  some.avx2 = some.avx512vnni = true;
  EXPECT_EQ(some.text(), "avx2 avx512vnni");
}

#if defined(__aarch64__)
TEST(CpuFeatures, EveryAArch64HasNeon) { EXPECT_TRUE(cpu_features().neon); }

TEST(CpuFeatures, NameHoldsTheProcessorsNumbers) {
  const std::string part = cpuinfo("CPU part");
  if (part.empty()) GTEST_SKIP() << "no CPU part in /proc/cpuinfo";
  EXPECT_NE(cpu_name().find(part), std::string::npos) << cpu_name() << " / " << part;
}
#else
TEST(CpuFeatures, NameIsTheProcessors) {
  const std::string reported = cpuinfo("model name");
  if (reported.empty()) GTEST_SKIP() << "no model name in /proc/cpuinfo";
  EXPECT_NE(reported.find(cpu_name()), std::string::npos) << cpu_name() << " / " << reported;
}
#endif

}  // namespace
}  // namespace oscar
