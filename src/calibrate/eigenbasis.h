// Eigenvectors of a covariance, in one definite order and sign.
#pragma once

#include <string>
#include <vector>

#include "calibrate/matrix.h"

namespace oscar::calibrate {

struct Eigenbasis {
  MatrixD vectors;  // [dim][dim], column j is the eigenvector of values[j]
  VectorD values;   // [dim] descending; rounding below zero is set to zero
};

// `sum` [dim]² is a symmetric sum over `count` rows. A vector's component of largest magnitude (the
// first of equals) is positive. Throws Error(kCorrupt) naming `what` where it does not converge.
Eigenbasis eigenbasis(const std::vector<double>& sum, double count, int dim,
                      const std::string& what);

}  // namespace oscar::calibrate
