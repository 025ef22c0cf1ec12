// Every kernel set writes the scalar set's bytes, whatever the shape, the values and what the plane
// held before; and reads any bytes as the scalar set does.
#include <cmath>
#include <cstring>

#include "kernel_case.h"

namespace oscar::kernels {
namespace {

struct EncodeCase {
  PlaneLayout layout;
  int num_rows;
  std::int64_t stride;
  float clip_ratio;
  std::vector<float> rows;
  std::vector<std::int32_t> tokens;
  std::vector<int> pages;  // 0, 1; −1: the row is skipped
  std::vector<std::uint8_t> planes[2];

  explicit EncodeCase(Source& source) : layout(any_layout(source, true)) {
    num_rows = source.between(1, 20);
    stride = layout.head_dim + source.below(4);
    constexpr float kClips[] = {1.0f, 0.96f, 0.9f, 0x1p-20f};
    const int clip = source.below(5);
    clip_ratio = clip < 4 ? kClips[clip] : static_cast<float>(1 - source.uniform());
    if (!(clip_ratio > 0)) clip_ratio = 1;
    for (int i = 0; i < num_rows; ++i) {
      tokens.push_back(source.below(kPageSize));
      pages.push_back(source.between(-1, 1));
    }
    rows = source.rows(num_rows, layout.head_dim, stride);
    for (auto& plane : planes) plane = any_plane(source, layout);
  }

  bool is_finite(int row) const {
    for (int c = 0; c < layout.head_dim; ++c) {
      if (!std::isfinite(rows[static_cast<std::size_t>(row * stride + c)])) return false;
    }
    return true;
  }
};

bool encode(const KernelSet& set, const EncodeCase& encoded, std::vector<std::uint8_t>* planes) {
  std::vector<std::uint8_t*> of_rows;
  for (const int page : encoded.pages) of_rows.push_back(page < 0 ? nullptr : planes[page].data());
  return set.encode_rows({encoded.rows.data(), of_rows.data(), encoded.tokens.data(),
                          encoded.num_rows, encoded.stride, encoded.layout, encoded.clip_ratio});
}

std::vector<float> decode(const KernelSet& set, const PlaneLayout& layout,
                          const std::vector<std::uint8_t>& plane, int first, int num_tokens,
                          int stride) {
  std::vector<float> rows(static_cast<std::size_t>(num_tokens * stride), 7.0f);
  set.decode_rows({plane.data(), rows.data(), stride, first, num_tokens, layout});
  return rows;
}

void check_encoding(Source& source) {
  const EncodeCase encoded(source);
  const auto sets = sets_scalar_first();
  std::vector<std::uint8_t> scalar[2] = {encoded.planes[0], encoded.planes[1]};
  const bool scalar_finite = encode(*sets[0], encoded, scalar);
  bool all_finite = true;
  for (int r = 0; r < encoded.num_rows; ++r) {
    if (encoded.pages[static_cast<std::size_t>(r)] >= 0) all_finite &= encoded.is_finite(r);
  }
  const std::string what = describe(encoded.layout);
  if (scalar_finite != all_finite) fail("scalar " + what + ": wrong report of finite rows");
  for (const KernelSet* set : sets) {
    std::vector<std::uint8_t> planes[2] = {encoded.planes[0], encoded.planes[1]};
    if (encode(*set, encoded, planes) != all_finite) {
      fail(set->name + (" " + what) + ": wrong report of finite rows");
    }
    for (const int page : {0, 1}) {
      if (planes[page] != scalar[page]) {
        fail(set->name + (" " + what) + ": other bytes than scalar's");
      }
    }
  }
  // Nothing that was encoded decodes to NaN or Inf.
  for (int r = 0; r < encoded.num_rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    if (encoded.pages[row] < 0) continue;
    const int dim = encoded.layout.head_dim;
    for (const float value : decode(*sets[0], encoded.layout, scalar[encoded.pages[row]],
                                    encoded.tokens[row], 1, dim)) {
      if (!std::isfinite(value)) fail("scalar " + what + ": an encoded row is not finite");
    }
  }
}

void check_decoding(Source& source) {
  const PlaneLayout layout = any_layout(source, true);
  const std::vector<std::uint8_t> plane = any_plane(source, layout);
  const int first = source.below(kPageSize), num_tokens = source.between(1, kPageSize - first);
  const int stride = layout.head_dim + source.below(4);
  const auto sets = sets_scalar_first();
  const std::vector<float> scalar = decode(*sets[0], layout, plane, first, num_tokens, stride);
  for (const KernelSet* set : sets) {
    require_same(decode(*set, layout, plane, first, num_tokens, stride), scalar,
                 set->name + (" decode_rows " + describe(layout)));
  }
}

void check_transform(Source& source) {
  const int dim = 16 * source.between(2, 16), num_rows = source.between(1, 19);
  const int x_stride = dim + source.below(4), y_stride = dim + source.below(4);
  const std::vector<float> x = source.rows(num_rows, dim, x_stride);
  const std::vector<float> matrix = source.rows(dim, dim, dim);
  const auto run = [&](const KernelSet& set) {
    std::vector<float> y(static_cast<std::size_t>(num_rows * y_stride), 7.0f);
    set.transform_rows({x.data(), matrix.data(), y.data(), num_rows, x_stride, y_stride, dim});
    return y;
  };
  const auto sets = sets_scalar_first();
  const std::vector<float> scalar = run(*sets[0]);
  for (const KernelSet* set : sets) {
    require_same(run(*set), scalar,
                 set->name + (" transform_rows, head_dim " + std::to_string(dim)));
  }
}

}  // namespace
}  // namespace oscar::kernels

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Source source(data, size);
  switch (source.below(3)) {
    case 0: oscar::kernels::check_encoding(source); break;
    case 1: oscar::kernels::check_decoding(source); break;
    default: oscar::kernels::check_transform(source); break;
  }
  return 0;
}
