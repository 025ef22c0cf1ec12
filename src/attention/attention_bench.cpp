// Attention over 4096 coded tokens with windows 64/256, one thread. Decode: ns per token and KV
// head. Prefill of 512 queries: GFLOP/s, counting 4·head_dim operations for every (query head,
// token) pair that is not hidden.
#include <benchmark/benchmark.h>

#include <memory>

#include "attention/attention_test_support.h"

namespace oscar::attention::test {
namespace {

constexpr std::int64_t kTokens = 4096;

Scenario scenario(const benchmark::State& state) {
  return {.codebook = Codebook::kSymmetric,
          .mean = state.range(2) != 0 ? Mean::kHalfSplit : Mean::kNone,
          .num_kv_heads = 2,
          .group = static_cast<int>(state.range(1)),
          .head_dim_k = static_cast<int>(state.range(0)),
          .head_dim_v = static_cast<int>(state.range(0)),
          .num_tokens = kTokens,
          .num_queries = state.range(3),
          .sink_tokens = 64,
          .recent_tokens = 256};
}

void attend(benchmark::State& state) {
  const Scenario s = scenario(state);
  Layer layer(s);
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

// head_dim, query heads per KV head, RoPE-aware key mean, queries.
BENCHMARK(attend)
    ->ArgNames({"dim", "ratio", "mean", "queries"})
    ->ArgsProduct({{64}, {3}, {0, 1}, {1, 512}})
    ->ArgsProduct({{128}, {6}, {0, 1}, {1, 512}})
    ->Unit(benchmark::kMicrosecond)
    ->MeasureProcessCPUTime();

}  // namespace
}  // namespace oscar::attention::test
