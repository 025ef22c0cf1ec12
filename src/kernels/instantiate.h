// Defines every operation of one kernel set in namespace OSCAR_KERNEL_NAMESPACE. Included by a thin
// ISA file, after its ISA header.
#pragma once

#include "kernels/accumulate_tile.h"
#include "kernels/decode.h"
#include "kernels/dot_tile.h"
#include "kernels/encode.h"
#include "kernels/kernels.h"
#include "kernels/kernels.inc"
#include "kernels/mean_tile.h"
#include "kernels/pv_codes.h"
#include "kernels/pv_integer.h"
#include "kernels/qk_codes.h"
#include "kernels/qk_integer.h"
#include "kernels/quantize_queries.h"
#include "kernels/softmax_tile.h"
#include "kernels/transform.h"

namespace oscar::kernels::OSCAR_KERNEL_NAMESPACE {

#define OSCAR_DEFINE_OPERATION(Result, operation, Params) \
  Result operation(const Params& params) noexcept;        \
  Result operation(const Params& params) noexcept { return operation##_generic(params); }
OSCAR_KERNEL_OPERATIONS(OSCAR_DEFINE_OPERATION)
#undef OSCAR_DEFINE_OPERATION

}  // namespace oscar::kernels::OSCAR_KERNEL_NAMESPACE
