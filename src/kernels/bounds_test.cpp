// Kernels touch nothing beyond their buffers: every buffer ends where an inaccessible page begins.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "kernels/kernels_test_support.h"

namespace oscar::kernels {
namespace {

// Memory whose last byte is followed by a page that faults.
template <typename T>
class Guarded {
 public:
  explicit Guarded(std::size_t count) : count_(count) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t usable = (count * sizeof(T) + page - 1) / page * page;
    mapped_ = usable + page;
    base_ = static_cast<std::uint8_t*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + usable, page, PROT_NONE) != 0) std::abort();
    data_ = reinterpret_cast<T*>(base_ + usable - count * sizeof(T));
  }
  explicit Guarded(const std::vector<T>& values) : Guarded(values.size()) {
    std::copy(values.begin(), values.end(), data_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(base_, mapped_); }

  T* data() const { return data_; }
  std::size_t size() const { return count_; }

 private:
  std::size_t count_, mapped_;
  std::uint8_t* base_;
  T* data_;
};

TEST(Bounds, OnPlanes) {
  std::mt19937_64 random = seeded(71);
  for (const int head_dim : kHeadDims) {
    std::vector<PlaneLayout> layouts = all_layouts(head_dim);
    layouts.push_back({head_dim, {16, head_dim}});
    const auto dim = static_cast<std::size_t>(head_dim);
    const Guarded<float> rows(normal_values(kPageSize * dim, random));
    for (const PlaneLayout& layout : layouts) {
      const Guarded<std::uint8_t> plane(static_cast<std::size_t>(layout.plane_bytes()));
      const Guarded<float> decoded(rows.size());
      for (const KernelSet* set : runnable_sets()) {
        ASSERT_TRUE(encode_tokens(*set, {rows.data(), rows.size()}, layout, 0.96f, plane.data()));
        set->decode_rows({plane.data(), decoded.data(), head_dim, 0, kPageSize, layout});
        for (const std::size_t num_rows : {1u, 3u, 9u}) {
          for (const std::size_t tokens : {1u, 17u, 64u}) {
            const Guarded<float> q(num_rows * dim), p(num_rows * tokens), out(num_rows * dim);
            const auto count = static_cast<int>(num_rows), length = static_cast<int>(tokens);
            set->qk_codes(
                {q.data(), plane.data(), p.data(), count, length, head_dim, length, layout});
            set->pv_codes(
                {p.data(), plane.data(), out.data(), count, length, length, head_dim, layout});
            if (layout.quant.bits == 16) continue;
            const auto groups = static_cast<std::size_t>(layout.num_groups());
            const Guarded<std::int8_t> bytes(2 * num_rows * dim);
            const Guarded<float> scales(num_rows * groups), sums(num_rows * groups);
            set->quantize_queries(
                {q.data(), count, head_dim, layout, bytes.data(), scales.data(), sums.data()});
            set->qk_integer({bytes.data(), scales.data(), sums.data(), plane.data(), p.data(),
                             count, length, length, layout});
            set->pv_integer(
                {p.data(), plane.data(), out.data(), count, length, length, head_dim, layout});
          }
        }
      }
    }
  }
}

TEST(Bounds, OnTiles) {
  for (const KernelSet* set : runnable_sets()) {
    for (const int head_dim : kHeadDims) {
      const auto dim = static_cast<std::size_t>(head_dim);
      const Guarded<float> matrix(dim * dim);
      for (const std::size_t rows : {1u, 4u, 13u}) {
        for (const std::size_t tokens : {1u, 15u, 33u, 64u}) {
          const Guarded<float> q(rows * dim), k(tokens * dim), logits(rows * tokens);
          const Guarded<float> max(rows), sum(rows), rescale(rows);
          std::fill(max.data(), max.data() + rows, -std::numeric_limits<float>::infinity());
          const auto count = static_cast<int>(rows), length = static_cast<int>(tokens);
          set->dot_tile({q.data(), k.data(), logits.data(), count, length, head_dim, head_dim,
                         head_dim, length, true});
          set->softmax_tile(
              {logits.data(), max.data(), sum.data(), rescale.data(), count, length, length});
          set->accumulate_tile({logits.data(), k.data(), q.data(), count, length, head_dim, length,
                                head_dim, head_dim});
          // All logits are 0: each weight is 1, each sum the number of tokens.
          for (std::size_t r = 0; r < rows; ++r) EXPECT_EQ(sum.data()[r], length) << set->name;
        }
        const Guarded<float> x(rows * dim), y(rows * dim);
        set->transform_rows({x.data(), matrix.data(), y.data(), static_cast<std::int64_t>(rows),
                             head_dim, head_dim, head_dim});
      }
    }
  }
}

}  // namespace
}  // namespace oscar::kernels
