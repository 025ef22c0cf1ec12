// Matrix types of the calibration. Rows are vectors, stored one after the other.
#pragma once

#include <Eigen/Core>

namespace oscar::calibrate {

using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixD = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using VectorF = Eigen::VectorXf;
using VectorD = Eigen::VectorXd;

}  // namespace oscar::calibrate
