#include "calibrate/trial_codec.h"

#include <algorithm>

namespace oscar::calibrate {

void TrialCodec::transform(const MatrixF& rows, const MatrixF& matrix, MatrixF* transformed) const {
  transformed->resize(rows.rows(), rows.cols());
  kernels_.transform_rows({.x = rows.data(),
                           .matrix = matrix.data(),
                           .y = transformed->data(),
                           .num_rows = rows.rows(),
                           .x_stride = rows.cols(),
                           .y_stride = rows.cols(),
                           .head_dim = static_cast<int>(rows.cols())});
}

bool TrialCodec::round_trip(const MatrixF& rows, const PlaneLayout& layout, float clip_ratio,
                            MatrixF* decoded) {
  const std::int64_t num_rows = rows.rows();
  const std::int64_t num_pages = (num_rows + kPageSize - 1) / kPageSize;
  pages_.resize(static_cast<std::size_t>(num_pages * layout.plane_bytes()));
  planes_.resize(static_cast<std::size_t>(num_rows));
  token_in_page_.resize(static_cast<std::size_t>(num_rows));
  for (std::int64_t row = 0; row < num_rows; ++row) {
    planes_[row] = pages_.data() + row / kPageSize * layout.plane_bytes();
    token_in_page_[row] = static_cast<std::int32_t>(row % kPageSize);
  }
  const bool finite = kernels_.encode_rows({.y = rows.data(),
                                            .planes = planes_.data(),
                                            .token_in_page = token_in_page_.data(),
                                            .num_rows = num_rows,
                                            .y_stride = rows.cols(),
                                            .layout = layout,
                                            .clip_ratio = clip_ratio});
  decoded->resize(num_rows, rows.cols());
  for (std::int64_t first = 0; first < num_rows; first += kPageSize) {
    kernels_.decode_rows(
        {.plane = planes_[first],
         .rows = decoded->data() + first * rows.cols(),
         .row_stride = rows.cols(),
         .first = 0,
         .num_tokens = static_cast<int>(std::min<std::int64_t>(kPageSize, num_rows - first)),
         .layout = layout});
  }
  return finite;
}

}  // namespace oscar::calibrate
