// The fixture of the attention kernels' tests: a case against fp64, by every kernel. Skipped, and
// said so, without a GPU.
//
// Tolerance 4e-3 in the norm: BF16 outputs cost 2^−9/√3 ≈ 1.1e-3 to 1.7e-3 alone; 16-bit integer
// queries and float16 (Hopper) or BF16 (generic) weights and values the rest.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "cuda/testing/random_case.h"
#include "cuda/testing/reference.h"

namespace oscar::cuda::testing {

inline constexpr double kTolerance = 4e-3;
inline constexpr double kLseTolerance = 1e-2;  // natural log units at logits of a few tens

class AttendFixture : public ::testing::TestWithParam<AttendKernel> {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
    device_ = device_info(0);
    if (GetParam() != AttendKernel::kGeneric && device_.compute_capability / 10 != 9) {
      GTEST_SKIP() << "no Hopper card";
    }
  }

  struct Launch {
    AttendPlan plan;
    DeviceBuffer<std::uint8_t> workspace;
  };
  Launch prepare(const RandomCase& random_case) {
    ++num_cases_;
    Launch launch{plan_attend(random_case.spec().shape(), device_, GetParam()), {}};
    launch.workspace = DeviceBuffer<std::uint8_t>(launch.plan.workspace_bytes);
    launch.workspace.fill(0xff);
    const Status status =
        prepare_attend(launch.plan, launch.workspace.data(), launch.workspace.size(), nullptr);
    EXPECT_TRUE(status.ok()) << status.message;
    return launch;
  }
  void run(const Launch& launch, const RandomCase& random_case, cudaStream_t stream) const {
    const Status status = run_attend(launch.plan, random_case.params(), launch.workspace.data(),
                                     launch.workspace.size(), stream);
    EXPECT_TRUE(status.ok()) << status.message;
  }
  // Returns the error of the outputs, and records it for the summary line.
  double expect_close(const RandomCase& random_case) {
    check(cudaDeviceSynchronize(), "kernel");
    const ReferenceResult truth =
        reference_attend(random_case.params(), random_case.spec().shape().max_seq_len);
    const double error = relative_error(random_case.out(), truth.out);
    EXPECT_LE(error, kTolerance) << random_case.spec().name();
    EXPECT_FALSE(std::isnan(error)) << random_case.spec().name();
    const std::vector<float> lse = random_case.lse();
    for (std::size_t i = 0; i < lse.size(); ++i) {
      if (std::isinf(truth.lse[i])) {
        EXPECT_EQ(lse[i], truth.lse[i]) << random_case.spec().name();
      } else {
        EXPECT_NEAR(lse[i], truth.lse[i], kLseTolerance) << random_case.spec().name();
      }
      if (HasFailure()) break;
    }
    worst_ = std::fmax(worst_, error);
    return error;
  }
  // The prefill kernel serves no heads of 256, groups within a head or means of many pairs.
  bool serves(const CaseSpec& spec) const {
    return GetParam() != AttendKernel::kHopperPrefill ||
           (spec.head_dim <= 128 && spec.group_size == 0 &&
            (!spec.has_mean || spec.num_mean_pairs() <= kHopperPrefillMeanPairs));
  }
  void expect_right(const CaseSpec& spec) {
    if (!serves(spec)) return;
    RandomCase random_case(spec);
    const Launch launch = prepare(random_case);
    random_case.poison_results();
    run(launch, random_case, nullptr);
    expect_close(random_case);
    // A second launch on the workspace as the first left it.
    const std::vector<float> first = random_case.out();
    random_case.poison_results();
    run(launch, random_case, nullptr);
    check(cudaDeviceSynchronize(), "second launch");
    EXPECT_EQ(random_case.out(), first) << spec.name();
  }
  // A launch captured in a graph serves other lengths and tables of four sequences of at most 1000.
  void expect_right_replays(const CaseSpec& spec) {
    RandomCase random_case(spec);
    const Launch launch = prepare(random_case);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamCreate(&stream), "stream");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    run(launch, random_case, stream);
    check(cudaStreamEndCapture(stream, &graph), "end capture");
    check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    unsigned seed = 40;
    for (const std::vector<std::int32_t>& lengths :
         {std::vector<std::int32_t>{500, 900, 128, 1000}, {1, 0, 1000, 64}, {999, 65, 97, 500}}) {
      random_case.shuffle(lengths, ++seed);
      random_case.poison_results();
      check(cudaGraphLaunch(executable, stream), "replay");
      check(cudaStreamSynchronize(stream), "replay");
      expect_close(random_case);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
  void TearDown() override {
    EXPECT_TRUE(num_cases_ > 0 || IsSkipped()) << "the kernel serves no case of this test";
    if (worst_ > 0) std::printf("    worst relative error %.2e\n", worst_);
  }

  DeviceInfo device_;
  double worst_ = 0;
  int num_cases_ = 0;
};

// Of every test source: the tests run by each kernel.
inline auto every_attend_kernel() {
  return ::testing::Values(AttendKernel::kHopperDecode, AttendKernel::kHopperPrefill,
                           AttendKernel::kGeneric);
}
inline std::string attend_kernel_label(const ::testing::TestParamInfo<AttendKernel>& kernel) {
  return kernel.param == AttendKernel::kGeneric         ? "Generic"
         : kernel.param == AttendKernel::kHopperPrefill ? "Prefill"
                                                        : "Hopper";
}

}  // namespace oscar::cuda::testing
