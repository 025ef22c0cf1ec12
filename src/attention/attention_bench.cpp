// Attention over 4096 coded tokens with windows 64/256, one thread, every kernel set that this
// machine runs, in integers and in single precision. Decode: ns per token and KV head. Prefill of
// 512 queries: GFLOP/s, counting 4·head_dim operations for every (query head, token) pair that is
// not hidden.
//
//   attention_bench --benchmark_filter='avx2/integer/d128/heads6/'
#include <benchmark/benchmark.h>

#include <memory>
#include <string>

#include "attention/attention_test_support.h"

namespace oscar::attention::test {
namespace {

constexpr std::int64_t kTokens = 4096;

void attend(benchmark::State& state, const Scenario& s, const kernels::KernelSet& set) {
  Layer layer(s, set);
  std::vector<float> out(s.num_queries * s.num_kv_heads * s.group * s.head_dim_v);
  layer.params().out = out.data();
  layer.params().out_query_stride = std::int64_t{s.num_kv_heads} * s.group * s.head_dim_v;
  layer.params().out_head_stride = s.head_dim_v;
  const Plan p = plan(layer.shape(), 1);
  AlignedBuffer<std::uint8_t> workspace(p.workspace_bytes);
  for (auto _ : state) run(p, layer.params(), workspace.data());
  const double token_heads = static_cast<double>(kTokens * s.num_kv_heads);
  const double pairs = static_cast<double>(s.num_queries) *
                       (static_cast<double>(kTokens) - static_cast<double>(s.num_queries - 1) / 2);
  using benchmark::Counter;
  state.counters["ns_per_token_head"] =
      Counter(token_heads * 1e-9, Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.counters["gflops"] = Counter(4e-9 * s.head_dim_k * pairs * s.num_kv_heads * s.group,
                                     Counter::kIsIterationInvariantRate);
}

struct Shapes {
  int head_dim, group;
};

void add(const kernels::KernelSet& set, bool float_path, const Shapes& shape, int k_bits, Mean mean,
         std::int64_t num_queries) {
  const Scenario scenario{.k_bits = k_bits,
                          .codebook = Codebook::kSymmetric,
                          .mean = mean,
                          .num_kv_heads = 2,
                          .group = shape.group,
                          .head_dim_k = shape.head_dim,
                          .head_dim_v = shape.head_dim,
                          .num_tokens = kTokens,
                          .num_queries = num_queries,
                          .sink_tokens = 64,
                          .recent_tokens = 256,
                          .copies_in_order = true,
                          .float_path = float_path};
  const std::string name = std::string(set.name) + (float_path ? "/float" : "/integer") + "/d" +
                           std::to_string(shape.head_dim) + "/heads" + std::to_string(shape.group) +
                           "/k" + std::to_string(k_bits) + "v2" +
                           (mean == Mean::kNone ? "/plain" : "/mean") +
                           (num_queries == 1 ? "/decode" : "/prefill");
  benchmark::RegisterBenchmark(name.c_str(),
                               [=, &set](benchmark::State& state) { attend(state, scenario, set); })
      ->Unit(benchmark::kMicrosecond)
      ->MeasureProcessCPUTime();
}

void register_all() {
  for (const kernels::KernelSet* set : runnable_sets()) {
    for (const bool float_path : {false, true}) {
      for (const Shapes& shape : {Shapes{64, 3}, Shapes{128, 6}}) {
        for (const Mean mean : {Mean::kNone, Mean::kHalfSplit}) {
          for (const std::int64_t num_queries : {1, 512}) {
            add(*set, float_path, shape, 2, mean, num_queries);
          }
        }
        add(*set, float_path, shape, 3, Mean::kNone, 1);
      }
    }
  }
}

}  // namespace
}  // namespace oscar::attention::test

int main(int argc, char** argv) {
  oscar::attention::test::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
