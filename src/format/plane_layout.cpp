#include "format/plane_layout.h"

#include <string>

#include "base/error.h"

namespace oscar {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

}  // namespace

void PlaneLayout::validate() const {
  if (head_dim < kMinHeadDim || head_dim > kMaxHeadDim || head_dim % kHeadDimMultiple != 0) {
    refuse("head size " + std::to_string(head_dim) + " is not supported; legal: multiples of " +
           std::to_string(kHeadDimMultiple) + " from " + std::to_string(kMinHeadDim) + " to " +
           std::to_string(kMaxHeadDim));
  }
  if (quant.bits != 2 && quant.bits != 3 && quant.bits != 4 && quant.bits != 16) {
    refuse("bits " + std::to_string(quant.bits) + " are not supported; legal: 2, 3, 4, 16");
  }
  if (quant.codebook != Codebook::kAffine && quant.codebook != Codebook::kSymmetric &&
      quant.codebook != Codebook::kTrellis) {
    refuse("codebook " + std::to_string(static_cast<int>(quant.codebook)) +
           " is unknown; legal: 0 (affine), 1 (symmetric), 2 (trellis)");
  }
  if (quant.codebook == Codebook::kTrellis && (quant.bits == 3 || quant.bits == 4)) {
    refuse("trellis codes have 2 bits, and " + std::to_string(quant.bits) + " are asked for");
  }
  if (quant.scale_fit != ScaleFit::kPlain && quant.scale_fit != ScaleFit::kUnbiased &&
      quant.scale_fit != ScaleFit::kLeastSquares) {
    refuse("scale fit " + std::to_string(static_cast<int>(quant.scale_fit)) +
           " is unknown; legal: 0 (plain), 1 (unbiased), 2 (least squares)");
  }
  if (quant.bits == 16) return;  // no groups
  if (quant.group_size < kGroupMultiple || quant.group_size % kGroupMultiple != 0 ||
      head_dim % quant.group_size != 0) {
    refuse("group size " + std::to_string(quant.group_size) + " does not fit head size " +
           std::to_string(head_dim) + "; legal: multiples of " + std::to_string(kGroupMultiple) +
           " that divide it");
  }
}

}  // namespace oscar
