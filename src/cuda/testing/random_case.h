// A random paged cache on the device with everything that attention may be asked for; what nobody
// wrote holds NaN.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/attend.h"
#include "cuda/testing/device_buffer.h"

namespace oscar::cuda::testing {

struct CaseSpec {
  std::vector<std::int32_t> lengths{1000};
  int num_queries = 1;
  int num_q_heads = 8, num_kv_heads = 2, head_dim = 128;
  int key_bits = 2, value_bits = 2;
  Codebook codebook = Codebook::kAffine;
  std::optional<Codebook> value_codebook;  // where it is not that of the keys
  int group_size = 0;                      // 0: min(head_dim, 128)
  bool has_copies = false;
  bool has_raw_queries = false;  // copies of keys are in another basis than q
  std::int32_t sink_tokens = 0, recent_tokens = 0, sliding_window = 0;
  float soft_cap = 0;
  bool has_sinks = false, has_mean = false;
  int mean_pairs = 0;        // 0: half the head size
  float mean_spread = 2.0f;  // of the coefficients
  float query_spread = 2.0f;
  float value_scale = 1.0f;
  bool shares_pages = false;  // every sequence reads the pages of the first, as long as all
  unsigned seed = 1;

  std::string name() const;
  int num_mean_pairs() const { return mean_pairs > 0 ? mean_pairs : head_dim / 2; }
  PlaneLayout layout(int bits, Codebook codes) const;
  AttendShape shape() const;
};

class RandomCase {
 public:
  explicit RandomCase(const CaseSpec& spec);

  const CaseSpec& spec() const { return spec_; }
  // Everything but the plan's fields; out and lse are this case's.
  AttendParams params() const { return params_; }
  // New lengths (≤ those of the spec) and a new order of pages, in place: for replays of a graph.
  void shuffle(const std::vector<std::int32_t>& lengths, unsigned seed);
  void poison_results();
  std::vector<float> out() const;
  std::vector<float> lse() const { return lse_.download(); }

 private:
  void fill();
  CaseSpec spec_;
  AttendParams params_;
  std::int64_t max_pages_ = 0, num_pages_ = 0;
  DeviceBuffer<std::uint8_t> pages_;
  DeviceBuffer<std::int32_t> table_, lengths_, copy_blocks_;
  DeviceBuffer<bf16_t> q_, raw_q_, out_, copies_;
  DeviceBuffer<float> lse_, sinks_, coefficients_, tile_, start_;
};

// ‖a − b‖ / ‖b‖; NaN when a holds one.
double relative_error(const std::vector<float>& a, const std::vector<double>& b);

}  // namespace oscar::cuda::testing
