// Pages whose elements and bytes lie past 2³¹: 120000 pages of 8 KV heads and 128 channels are 2.06
// GiB of 2-bit codes. Only the pages in use are ever touched, so the machine needs little memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <numeric>
#include <vector>

#include "attention/attention.h"
#include "base/aligned_buffer.h"
#include "cache/test_artefact.h"

namespace oscar::attention::test {
namespace {

constexpr int kHeads = 8, kDim = 128;
constexpr std::int64_t kPages = 120000;

class Reserved {
 public:
  explicit Reserved(std::uint64_t num_bytes) : num_bytes_(num_bytes) {
    base_ = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Reserved() { munmap(base_, num_bytes_); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  bool is_there() const { return base_ != MAP_FAILED; }
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(base_); }

 private:
  std::uint64_t num_bytes_;
  void* base_;
};

TEST(LargePool, OutputsAreEqualFromEveryPlace) {
  const auto codec = cache::test::make_codec({.k_quant = {2, kDim},
                                              .v_quant = {2, kDim},
                                              .num_kv_heads = kHeads,
                                              .head_dim_k = kDim,
                                              .head_dim_v = kDim},
                                             128, kernels::selected_kernel_set());
  const std::int64_t plane_bytes = codec.k_layout().plane_bytes();
  ASSERT_GT(kPages * kHeads * plane_bytes, std::int64_t{1} << 31);
  const Reserved k_bytes(kPages * kHeads * plane_bytes), v_bytes(kPages * kHeads * plane_bytes);
  ASSERT_TRUE(k_bytes.is_there() && v_bytes.is_there());

  constexpr std::int64_t kTokens = 100;
  cache::test::Generator generator(1);
  const std::vector<float> keys = cache::test::gaussian(kTokens * kHeads * kDim, 1.0f, &generator);
  const std::vector<float> values =
      cache::test::gaussian(kTokens * kHeads * kDim, 1.0f, &generator);
  const std::vector<float> q = cache::test::gaussian(2 * kHeads * kDim, 1.0f, &generator);
  std::vector<std::int32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);
  const Plan p = plan({1, kTokens, 2 * kHeads, kHeads, kDim, kDim}, 1);
  AlignedBuffer<std::uint8_t> workspace(p.workspace_bytes);

  std::vector<float> first_out;
  for (const std::array<std::int32_t, 2>& pages : {std::array{0, 1},
                                                   {32767, 32768},
                                                   {32768, 32767},
                                                   {39999, 39998},
                                                   {116507, 116508},
                                                   {119999, 0}}) {
    Params params;
    params.kv.k = {k_bytes.data(), kHeads * plane_bytes, plane_bytes, codec.k_layout()};
    params.kv.v = {v_bytes.data(), kHeads * plane_bytes, plane_bytes, codec.v_layout()};
    params.kv.block_table = pages.data();
    std::vector<std::int64_t> slots(kTokens);
    for (std::int64_t t = 0; t < kTokens; ++t)
      slots[t] = std::int64_t{pages[t / kPageSize]} * kPageSize + t % kPageSize;
    ASSERT_TRUE(codec.encode_keys({keys.data(), kTokens, kHeads * kDim, kDim}, positions.data(),
                                  slots.data(), params.kv.k, 1));
    ASSERT_TRUE(codec.encode_values({values.data(), kTokens, kHeads * kDim, kDim}, slots.data(),
                                    params.kv.v, 1));
    std::vector<float> out(2 * kHeads * kDim);
    params.q = q.data();
    params.q_query_stride = params.out_query_stride = 2 * kHeads * kDim;
    params.q_head_stride = params.out_head_stride = kDim;
    params.out = out.data();
    params.codec = &codec;
    run(p, params, workspace.data());
    if (first_out.empty()) first_out = out;
    EXPECT_EQ(out, first_out) << "pages " << pages[0] << ", " << pages[1];
    EXPECT_NE(out, std::vector<float>(out.size(), 0.0f));
  }
}

}  // namespace
}  // namespace oscar::attention::test
