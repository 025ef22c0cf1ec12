// One KV head's sampled rows and the attention among them: what a candidate is judged on.
#pragma once

#include <cstdint>
#include <vector>

#include "calibrate/collector.h"
#include "calibrate/matrix.h"

namespace oscar::calibrate {

// Which pairs of a layer's sample are stored as codes at run time, and what a sampled key stands
// for. Shared by the layer's heads.
struct SampleGeometry {
  std::vector<std::int64_t> keys, queries;  // places in the sample whose rows are all finite
  VectorF key_weight;  // [num_keys] tokens of the text that a sampled key stands for, 1 and above
  MatrixF visible;     // [num_queries][num_keys] 1: causal, 0: hidden
  MatrixF coded;       // [num_queries][num_keys] 1: visible and neither sink nor recent
  bool windowed =
      true;  // false: the text is too short for the windows, so every pair counts as coded
};

// Throws Error(kCorrupt) naming the layer where the sample contradicts its shape or nothing is
// left.
SampleGeometry sample_geometry(int layer, const LayerStatistics& stats);

// Row order of queries: [num_queries][q heads of the group].
struct HeadSample {
  MatrixF keys;     // [num_keys][head_dim_k] after RoPE
  MatrixF values;   // [num_keys][head_dim_v]
  MatrixF queries;  // [num_queries · q_heads_per_kv_head][head_dim_k], times the attention scale
  MatrixF weights;  // [query rows][num_keys] softmax over visible keys, each times key_weight
  MatrixF coded_weights;  // the same, 0 where the pair is exact at run time
  // Σ over query rows of coded_weights², resp. weights²: [num_keys]
  VectorF coded_square_sum, square_sum;
};

HeadSample head_sample(const LayerStatistics& stats, const SampleGeometry& geometry, int kv_head);

// Rows that are stored as codes at run time: `rows` without the leading sinks.
std::int64_t first_coded_key(const LayerStatistics& stats, const SampleGeometry& geometry);

}  // namespace oscar::calibrate
