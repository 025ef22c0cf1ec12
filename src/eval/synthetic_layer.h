// One attention layer with random keys and values in its cache: what the self-test judges and the
// benchmarks time. Methods are the calibrated ones' forms with random statistics, so that no model
// is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/aligned_buffer.h"
#include "cache/layer_codec.h"
#include "format/kv_spec.h"

namespace oscar::eval {

struct SyntheticShape {
  int num_q_heads = 12, num_kv_heads = 2, head_dim = 128;
  std::int64_t num_tokens = 4096;
  std::int64_t num_queries = 1;  // the last tokens
};

// Owns everything that params() points to, the output included. Not copyable.
class SyntheticLayer {
 public:
  // spec: a method (quarot, naive; oscar and oscar-plus with random means and a Hadamard for the
  // rotation), its bits and windows. Throws Error(kInvalidArgument).
  SyntheticLayer(const KvSpec& spec, const SyntheticShape& shape, const kernels::KernelSet& kernels,
                 std::uint64_t seed);
  SyntheticLayer(const SyntheticLayer&) = delete;
  SyntheticLayer& operator=(const SyntheticLayer&) = delete;

  const SyntheticShape& shape() const { return shape_; }
  attention::Shape attention_shape() const;
  const cache::LayerCodec& codec() const { return *codec_; }
  attention::Params& params() { return params_; }
  // Encodes all tokens again, as a host does with rows that arrive.
  void encode(int num_threads);

  const std::vector<float>& keys() const { return keys_; }  // [num_tokens][num_kv_heads·head_dim]
  const std::vector<float>& values() const { return values_; }    // the same
  const std::vector<float>& queries() const { return queries_; }  // [num_queries][num_q_heads·dim]
  const std::vector<float>& out() const { return out_; }          // [num_queries][num_q_heads·dim]
  const std::vector<std::int32_t>& positions() const { return positions_; }
  std::uint64_t coded_bytes() const;  // of all tokens: codes, scales, zero points

  // The attention of the last query in fp64, on the values that codes and copies stand for.
  std::vector<double> reference() const;

 private:
  void make_codec(const KvSpec& spec, const kernels::KernelSet& kernels, std::uint64_t seed);
  void make_copies(const KvSpec& spec);

  SyntheticShape shape_;
  std::unique_ptr<cache::LayerCodec> codec_;
  std::vector<float> keys_, values_, queries_, out_;
  std::vector<std::int32_t> positions_, copy_slots_;
  std::vector<std::int64_t> slots_;
  std::vector<bf16_t> k_copies_, v_copies_;
  AlignedBuffer<std::uint8_t> k_bytes_, v_bytes_;
  attention::Params params_;
};

}  // namespace oscar::eval
