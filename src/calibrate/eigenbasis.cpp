#include "calibrate/eigenbasis.h"

#include <Eigen/Eigenvalues>

#include "base/error.h"

namespace oscar::calibrate {

Eigenbasis eigenbasis(const std::vector<double>& sum, double count, int dim,
                      const std::string& what) {
  const MatrixD covariance = Eigen::Map<const MatrixD>(sum.data(), dim, dim) / count;
  const Eigen::SelfAdjointEigenSolver<MatrixD> solver(covariance);
  if (solver.info() != Eigen::Success) {
    throw Error(ErrorCode::kCorrupt,
                what + ": its eigenvectors cannot be computed; calibrate again");
  }
  Eigenbasis basis;  // the solver's order is ascending
  basis.vectors = solver.eigenvectors().rowwise().reverse();
  basis.values = solver.eigenvalues().reverse().cwiseMax(0.0);
  for (int j = 0; j < dim; ++j) {
    Eigen::Index largest = 0;
    basis.vectors.col(j).cwiseAbs().maxCoeff(&largest);
    if (basis.vectors(largest, j) < 0) basis.vectors.col(j) *= -1.0;
  }
  return basis;
}

}  // namespace oscar::calibrate
