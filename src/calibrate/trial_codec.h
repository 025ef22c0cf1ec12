// The real encoder and decoder on calibration rows: what fitting measures is what will be stored.
#pragma once

#include <cstdint>
#include <vector>

#include "calibrate/matrix.h"
#include "format/plane_layout.h"
#include "kernels/kernels.h"

namespace oscar::calibrate {

// Keeps its buffers between calls. Not thread-safe.
class TrialCodec {
 public:
  explicit TrialCodec(const kernels::KernelSet& kernels) : kernels_(kernels) {}

  // transformed = rows · matrix, in the encoder's own arithmetic. matrix: [head_dim][head_dim].
  void transform(const MatrixF& rows, const MatrixF& matrix, MatrixF* transformed) const;

  // decoded = what the codes of `rows` (transformed, mean subtracted) stand for. layout.head_dim is
  // the rows' width. false: a row is not finite.
  [[nodiscard]] bool round_trip(const MatrixF& rows, const PlaneLayout& layout, float clip_ratio,
                                MatrixF* decoded);

 private:
  const kernels::KernelSet& kernels_;
  std::vector<std::uint8_t> pages_;
  std::vector<std::uint8_t*> planes_;
  std::vector<std::int32_t> token_in_page_;
};

}  // namespace oscar::calibrate
