// A layer with its packed cells, exact copies and queries, and the same attention in fp64 on the
// values that the codes stand for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/aligned_buffer.h"
#include "cache/test_artefact.h"
#include "reference/attention.h"

namespace oscar::attention::test {

using cache::test::Mean;
using cache::test::Transform;

struct Scenario {
  int k_bits = 2, v_bits = 2, group_size = 128;
  Codebook codebook = Codebook::kAffine;
  Transform transform = Transform::kRandomOrthogonal;
  Mean mean = Mean::kHalfSplit;
  int num_kv_heads = 2, group = 2, head_dim_k = 64, head_dim_v = 64;
  std::int64_t num_tokens = 300;
  std::int64_t num_queries = 1;  // the last tokens of the sequence
  std::int32_t sink_tokens = 64, recent_tokens = 64;
  bool permuted_cells = false;  // tokens lie in random cells, with unwritten cells between them
  bool random_pages = false;
  bool copies_in_order = false;  // a token's copy lies in the row of its number, else in any
  bool causal = true;
  std::int32_t sliding_window = 0;
  float soft_cap = 0;
  bool mask = false;  // random −inf and finite values; some queries see nothing
  bool slopes = false, sinks = false;
  std::int32_t first_position = 0;
  int num_threads = 1;
  std::uint8_t unused_bytes = 0xff;  // what memory that nobody wrote holds
  bool float_path = false;
  std::uint64_t seed = 1;
  std::string name() const;
};

struct Result {
  std::vector<float> out,
      lse;  // [num_queries][num_q_heads][head_dim_v], [num_queries][num_q_heads]
};

// Owns everything that Params points to.
class Layer {
 public:
  explicit Layer(const Scenario& scenario,
                 const kernels::KernelSet& kernels = kernels::selected_kernel_set());
  Shape shape() const;
  const Params& params() const { return params_; }
  Params& params() { return params_; }
  Result attend() { return attend(scenario_.num_threads); }
  Result attend(int num_threads);
  Result reference() const;
  // Largest ‖q‖·‖k‖·scale over all pairs and the largest |v|: what error bounds scale with.
  double max_logit_magnitude() const;
  double max_value() const;

 private:
  void make_codec();
  void place_tokens();
  void make_rows();
  void store();
  void make_params();
  reference::Token token_of(std::int64_t cell, int head, std::int64_t query) const;

  Scenario scenario_;
  const kernels::KernelSet* kernels_;
  std::int64_t num_kv_ = 0;  // cells
  int num_q_heads_ = 0;
  std::unique_ptr<cache::LayerCodec> codec_;
  std::vector<float> keys_, values_, queries_;
  std::vector<std::int64_t> cell_of_token_;
  std::vector<std::int32_t> cell_positions_, block_table_, copy_slots_, query_positions_;
  std::vector<bf16_t> k_copies_, v_copies_;
  AlignedBuffer<std::uint8_t> k_bytes_, v_bytes_;
  std::vector<float> decoded_keys_,
      decoded_values_;  // [num_kv][num_kv_heads][head_dim], zeros where nothing is written
  std::vector<std::uint16_t> mask_;
  std::vector<float> slopes_, sinks_;
  Params params_;
};

// Kernel sets that this machine runs. The others are named on stdout, once a program.
std::vector<const kernels::KernelSet*> runnable_sets();

// ‖a − b‖₂/‖b‖₂ over the whole output.
double relative_error(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace oscar::attention::test
