// One call of one kernel, for a counter of instructions: instructions_test.py.
//
//   instruction_count SET OPERATION HEAD_DIM ROWS BITS        BITS: 2, 3, 4 or trellis
//
// The call happens twice: once outside and once inside of measured_call, which is what is counted.
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "base/error.h"
#include "kernels/kernels_test_support.h"

namespace {

using namespace oscar;
using namespace oscar::kernels;

// A page, queries and weights of every kind that an operation takes.
struct Inputs {
  const KernelSet& set;
  std::string operation;
  PlaneLayout layout;
  int num_rows;
  std::vector<float> rows, q, logits, out, scales, sums, max, sum, rescale, constants, table;
  std::vector<std::int8_t> bytes;
  std::vector<std::uint8_t> plane;

  Inputs(const KernelSet& kernels, std::string name, int head_dim, int count, int bits,
         Codebook codebook)
      : set(kernels),
        operation(std::move(name)),
        layout{head_dim, {bits, head_dim, codebook, ScaleFit::kUnbiased}},
        num_rows(count),
        plane(make_plane(layout, 0)) {
    std::mt19937_64 random(1);
    const auto n = static_cast<std::size_t>(num_rows), dim = static_cast<std::size_t>(head_dim);
    rows = normal_values(kPageSize * dim, random);
    q = normal_values(n * dim, random);
    logits.assign(n * kPageSize, 0x1p-10f);
    out.assign(n * dim, 0.0f);
    scales.assign(n, 0.0f);
    sums = sum = rescale = constants = scales;
    max.assign(n, -std::numeric_limits<float>::infinity());
    bytes.assign(2 * n * dim, 0);
    table = normal_values(std::size_t{2} * kMaxHeadDim * kPageSize, random);
    if (!encode_tokens(set, rows, layout, 1.0f, plane.data())) std::abort();
    quantize();
  }

  void quantize() {
    set.quantize_queries(
        {q.data(), num_rows, layout.head_dim, layout, bytes.data(), scales.data(), sums.data()});
  }

  // False: no such operation.
  bool call() {
    const int dim = layout.head_dim;
    if (operation == "quantize_queries") {
      quantize();
    } else if (operation == "qk_integer") {
      set.qk_integer({bytes.data(), scales.data(), sums.data(), plane.data(), logits.data(),
                      num_rows, kPageSize, kPageSize, layout});
    } else if (operation == "pv_integer") {
      set.pv_integer(
          {logits.data(), plane.data(), out.data(), num_rows, kPageSize, kPageSize, dim, layout});
    } else if (operation == "qk_codes") {
      set.qk_codes(
          {q.data(), plane.data(), logits.data(), num_rows, kPageSize, dim, kPageSize, layout});
    } else if (operation == "pv_codes") {
      set.pv_codes(
          {logits.data(), plane.data(), out.data(), num_rows, kPageSize, kPageSize, dim, layout});
    } else if (operation == "softmax_tile") {
      set.softmax_tile(
          {logits.data(), max.data(), sum.data(), rescale.data(), num_rows, kPageSize, kPageSize});
    } else if (operation == "mean_tile") {
      // About the pairs of a rotation with base 10⁶.
      const int num_fast = dim / 14, num_blocks[] = {dim / 18, dim / 21, dim / 25, dim / 64};
      set.mean_tile({table.data(), constants.data(), table.data(), table.data(), table.data(),
                     table.data(), logits.data(), num_rows, num_fast, num_blocks, kPageSize});
    } else if (operation == "encode_rows") {
      return encode_tokens(set, rows, layout, 0.96f, plane.data());
    } else {
      return false;
    }
    return true;
  }
};

}  // namespace

extern "C" [[gnu::noinline]] bool measured_call(void* inputs);
extern "C" [[gnu::noinline]] bool measured_call(void* inputs) {
  return static_cast<Inputs*>(inputs)->call();
}

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: instruction_count SET OPERATION HEAD_DIM ROWS BITS\n");
    return 2;
  }
  try {
    const bool is_trellis = argv[5] == std::string("trellis");
    Inputs inputs(kernel_set_by_name(argv[1]), argv[2], std::atoi(argv[3]), std::atoi(argv[4]),
                  is_trellis ? 2 : std::atoi(argv[5]),
                  is_trellis ? Codebook::kTrellis : Codebook::kSymmetric);
    if (inputs.call() && measured_call(&inputs)) return 0;
    std::fprintf(stderr, "there is no operation '%s' here\n", argv[2]);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}
