// Timing of GPU launches: a graph of many launches, each on other memory than the last, replayed
// and timed by events.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../bench/cuda/card_state.h"
#include "cuda/testing/device_buffer.h"

namespace oscar::bench {

struct Timing {
  double median_us = 0, p10_us = 0, p90_us = 0;
  std::optional<CardState> card;  // in the middle of the timed replays
};

enum class Load {
  kSustained,  // replayed for 30 ms first
  kBurst,      // after a pause, so that power and clocks are fresh
};

// launch(i, stream): the i-th of `num_launches` launches; times are of one launch.
inline Timing time_launches(const std::function<void(int, cudaStream_t)>& launch, int num_launches,
                            Load load) {
  using cuda::testing::check;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaEvent_t begin, end;
  check(cudaStreamCreate(&stream), "stream");
  launch(0, stream);
  check(cudaStreamSynchronize(stream), "first launch");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < num_launches; ++i) launch(i, stream);
  check(cudaStreamEndCapture(stream, &graph), "end capture");
  check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  static const CardMonitor monitor;
  std::optional<CardState> card;
  const auto replay_us = [&](bool is_watched = false) {
    cudaEventRecord(begin, stream);
    check(cudaGraphLaunch(executable, stream), "replay");
    cudaEventRecord(end, stream);
    if (is_watched) card = monitor.read();
    check(cudaStreamSynchronize(stream), "replay");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    return 1e3 * ms / num_launches;
  };
  replay_us();
  if (load == Load::kSustained) {
    for (double total = 0; total < 30e3;) total += replay_us() * num_launches;
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    replay_us();  // wakes the clocks
  }
  std::vector<double> times;
  const int num_replays = load == Load::kSustained ? 15 : 3;
  for (int i = 0; i < num_replays; ++i) times.push_back(replay_us(i == num_replays / 2));
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return {times[times.size() / 2], times[times.size() / 10], times[times.size() * 9 / 10], card};
}

struct Shape {
  int num_q_heads, num_kv_heads, head_dim, batch, context;
  int k_bits = 16, v_bits = 16;
  bool mean_term = false;
};

// Collects results and writes the JSON of docs/kernels/cuda-decode.md.
class Report {
 public:
  void add(const std::string& kernel, const std::string& variant, const Shape& shape,
           const Timing& timing, double gbps, double rel_err) {
    char card[128] = "null", line[768];
    if (timing.card) {
      std::snprintf(card, sizeof card,
                    "{\"sm_mhz\": %u, \"memory_mhz\": %u, \"watts\": %.0f, \"limits\": %llu}",
                    timing.card->sm_mhz, timing.card->memory_mhz, timing.card->watts,
                    timing.card->limits);
    }
    std::snprintf(line, sizeof line,
                  "{\"kernel\": \"%s\", \"variant\": \"%s\", \"shape\": {\"num_q_heads\": %d, "
                  "\"num_kv_heads\": %d, "
                  "\"head_dim\": %d, \"batch\": %d, \"context\": %d, \"k_bits\": %d, \"v_bits\": "
                  "%d, \"mean_term\": %s}, "
                  "\"us\": {\"median\": %.3f, \"p10\": %.3f, \"p90\": %.3f}, \"gbps\": %.1f, "
                  "\"rel_err\": %s, \"card\": %s}",
                  kernel.c_str(), variant.c_str(), shape.num_q_heads, shape.num_kv_heads,
                  shape.head_dim, shape.batch, shape.context, shape.k_bits, shape.v_bits,
                  shape.mean_term ? "true" : "false", timing.median_us, timing.p10_us,
                  timing.p90_us, gbps, rel_err < 0 ? "null" : std::to_string(rel_err).c_str(),
                  card);
    results_.push_back(line);
    std::printf("%-10s %-34s %2d/%d d%d bs%d %6d k%dv%d%s: %8.2f us %6.0f GB/s", kernel.c_str(),
                variant.c_str(), shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.batch,
                shape.context, shape.k_bits, shape.v_bits, shape.mean_term ? "+mean" : "",
                timing.median_us, gbps);
    if (rel_err >= 0) std::printf(" err %.1e", rel_err);
    if (timing.card) {
      std::printf("  %u MHz %.0f W limits %llu", timing.card->sm_mhz, timing.card->watts,
                  timing.card->limits);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  void write(const std::string& path, const std::string& commit) const {
    cudaDeviceProp properties;
    int runtime = 0;
    cuda::testing::check(cudaGetDeviceProperties(&properties, 0), "device");
    cudaRuntimeGetVersion(&runtime);
    std::FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr) throw Error(ErrorCode::kIo, "cannot write " + path);
    std::fprintf(file,
                 "{\"device\": \"%s\", \"cuda\": \"%d.%d\", \"commit\": \"%s\", \"results\": [\n",
                 properties.name, runtime / 1000, runtime % 1000 / 10, commit.c_str());
    for (std::size_t i = 0; i < results_.size(); ++i) {
      std::fprintf(file, "  %s%s\n", results_[i].c_str(), i + 1 < results_.size() ? "," : "");
    }
    std::fprintf(file, "]}\n");
    std::fclose(file);
  }

 private:
  std::vector<std::string> results_;
};

}  // namespace oscar::bench
