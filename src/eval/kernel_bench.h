// Attention and encoding alone, ours against ggml's, on the same random layer in one run.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/instruction_counter.h"
#include "eval/synthetic_layer.h"
#include "eval/timing.h"
#include "eval/workbench.h"

namespace oscar::eval {

struct KernelBenchOptions {
  SyntheticShape shape;  // num_tokens is not looked at
  std::vector<std::int64_t> depths;
  int rounds = 21;
  int num_threads = 1;
  const InstructionCounter* instructions = nullptr;  // made before any thread was started, or null
  std::function<void(std::int64_t done, std::int64_t total)> progress;  // may be null
  const std::atomic<bool>* stop = nullptr;  // set: Error(kInterrupted) before the next call
};

struct KernelBenchRow {
  std::string kv, method, kernels;  // kernels: of our sets, or "ggml"
  std::int64_t depth = 0;
  int threads = 1;
  Spread ns;                                     // of one call
  double ns_per_token = 0;                       // and KV head (and query): the median
  std::optional<double> instructions_per_token;  // the same; empty where they are not counted
  std::uint64_t bytes = 0;                       // of the cache that a call reads or writes
  double gigabytes_per_s = 0;
  double relative_error = 0;  // attention: against fp64 on the values that the cache holds (ours),
                              // on the exact ones (ggml's)
};

// Before each call a buffer larger than the caches of the processor is read, so that keys and
// values come from memory as they do between the layers of a model. kvs: host types and methods.
std::vector<KernelBenchRow> bench_attention(const std::vector<KvChoice>& kvs,
                                            const KernelBenchOptions& options);
// Keys and values of `depth` tokens that arrive together.
std::vector<KernelBenchRow> bench_encode(const std::vector<KvChoice>& kvs,
                                         const KernelBenchOptions& options);

// GB/s at which threads read a buffer larger than the caches: the most that attention can reach.
double read_bandwidth(int num_threads);

}  // namespace oscar::eval
