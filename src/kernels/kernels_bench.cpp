// Every operation of every kernel set that this machine runs. Counters: GB/s of what is read and
// written, GFLOP/s where there are multiplications, and ns a token for the kernels on codes.
//
//   kernels_bench --benchmark_filter=avx2/qk_codes
#include <benchmark/benchmark.h>

#include <limits>

#include "kernels/kernels_test_support.h"

namespace oscar::kernels {
namespace {

using Counter = benchmark::Counter;

void count(benchmark::State& state, double bytes, double flops) {
  const auto runs = static_cast<double>(state.iterations());
  state.counters["GB/s"] = Counter(bytes * runs * 1e-9, Counter::kIsRate);
  if (flops > 0) state.counters["GFLOP/s"] = Counter(flops * runs * 1e-9, Counter::kIsRate);
}

void count_tokens(benchmark::State& state, double tokens) {
  state.counters["ns/token"] = Counter(tokens * static_cast<double>(state.iterations()) * 1e-9,
                                       Counter::kIsRate | Counter::kInvert);
}

constexpr int kTrellis = 0;  // in place of bits

PlaneLayout layout_of(int head_dim, int bits, ScaleFit fit = ScaleFit::kPlain) {
  if (bits == kTrellis) return {head_dim, {2, head_dim, Codebook::kTrellis, fit}};
  return {head_dim, {bits, head_dim, Codebook::kSymmetric, fit}};
}

struct Page {
  PlaneLayout layout;
  std::vector<float> rows;
  std::vector<std::uint8_t> plane;

  Page(const KernelSet& set, const PlaneLayout& page_layout) : layout(page_layout) {
    std::mt19937_64 random(1);
    rows = normal_values(static_cast<std::size_t>(kPageSize * layout.head_dim), random);
    plane = make_plane(layout, 0);
    encode_tokens(set, rows, layout, 1.0f, plane.data());
  }
};

std::vector<float> values(int rows, int columns) {
  std::mt19937_64 random(2);
  return normal_values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns), random);
}

void transform_rows(benchmark::State& state, const KernelSet& set, int head_dim, int num_rows) {
  const std::vector<float> x = values(num_rows, head_dim), matrix = values(head_dim, head_dim);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    set.transform_rows({x.data(), matrix.data(), y.data(), num_rows, head_dim, head_dim, head_dim});
    benchmark::ClobberMemory();
  }
  const double size = head_dim, rows = num_rows;
  count(state, 4 * (2 * rows * size + size * size), 2 * rows * size * size);
}

void encode_rows(benchmark::State& state, const KernelSet& set, int head_dim, int bits) {
  Page page(set, layout_of(head_dim, bits, ScaleFit::kUnbiased));
  for (auto _ : state) {
    benchmark::DoNotOptimize(encode_tokens(set, page.rows, page.layout, 0.96f, page.plane.data()));
  }
  count(state, static_cast<double>(4 * page.rows.size() + page.plane.size()), 0);
  count_tokens(state, kPageSize);
}

void decode_rows(benchmark::State& state, const KernelSet& set, int head_dim, int bits) {
  Page page(set, layout_of(head_dim, bits));
  for (auto _ : state) {
    set.decode_rows({page.plane.data(), page.rows.data(), head_dim, 0, kPageSize, page.layout});
    benchmark::ClobberMemory();
  }
  count(state, static_cast<double>(4 * page.rows.size() + page.plane.size()), 0);
  count_tokens(state, kPageSize);
}

void dot_tile(benchmark::State& state, const KernelSet& set, int head_dim, int num_rows) {
  const std::vector<float> q = values(num_rows, head_dim), k = values(kPageSize, head_dim);
  std::vector<float> logits(static_cast<std::size_t>(num_rows * kPageSize));
  for (auto _ : state) {
    set.dot_tile({q.data(), k.data(), logits.data(), num_rows, kPageSize, head_dim, head_dim,
                  head_dim, kPageSize, false});
    benchmark::ClobberMemory();
  }
  count(state, static_cast<double>(4 * (q.size() + k.size() + logits.size())),
        2.0 * num_rows * kPageSize * head_dim);
}

void accumulate_tile(benchmark::State& state, const KernelSet& set, int head_dim, int num_rows) {
  const std::vector<float> p(static_cast<std::size_t>(num_rows * kPageSize), 0x1p-10f);
  const std::vector<float> v = values(kPageSize, head_dim);
  std::vector<float> out(static_cast<std::size_t>(num_rows * head_dim));
  for (auto _ : state) {
    set.accumulate_tile({p.data(), v.data(), out.data(), num_rows, kPageSize, head_dim, kPageSize,
                         head_dim, head_dim});
    benchmark::ClobberMemory();
  }
  count(state, static_cast<double>(4 * (p.size() + v.size() + 2 * out.size())),
        2.0 * num_rows * kPageSize * head_dim);
}

void softmax_tile(benchmark::State& state, const KernelSet& set, int, int num_rows) {
  const std::vector<float> logits = values(num_rows, kPageSize);
  std::vector<float> tile = logits, sum(static_cast<std::size_t>(num_rows), 0.0f), rescale = sum;
  std::vector<float> max(sum.size(), -std::numeric_limits<float>::infinity());
  for (auto _ : state) {
    tile = logits;
    set.softmax_tile(
        {tile.data(), max.data(), sum.data(), rescale.data(), num_rows, kPageSize, kPageSize});
    benchmark::ClobberMemory();
  }
  count(state, static_cast<double>(8 * tile.size()), 0);
  count_tokens(state, kPageSize);
}

// One page of a decode step of one KV head with num_rows query heads.
void on_codes(benchmark::State& state, const KernelSet& set, int head_dim, int num_rows, int bits,
              bool qk, bool pv) {
  const Page page(set, layout_of(head_dim, bits));
  std::vector<float> q = values(num_rows, head_dim);
  for (float& x : q) x *= 0.1f;
  std::vector<float> logits(static_cast<std::size_t>(num_rows * kPageSize), 0x1p-10f);
  std::vector<float> out(q.size()), sum(static_cast<std::size_t>(num_rows)), rescale = sum;
  std::vector<float> max(sum.size(), -std::numeric_limits<float>::infinity());
  for (auto _ : state) {
    if (qk) {
      set.qk_codes({q.data(), page.plane.data(), logits.data(), num_rows, kPageSize, head_dim,
                    kPageSize, page.layout});
    }
    if (qk && pv) {
      set.softmax_tile(
          {logits.data(), max.data(), sum.data(), rescale.data(), num_rows, kPageSize, kPageSize});
    }
    if (pv) {
      set.pv_codes({logits.data(), page.plane.data(), out.data(), num_rows, kPageSize, kPageSize,
                    head_dim, page.layout});
    }
    benchmark::ClobberMemory();
  }
  const double sides = (qk ? 1 : 0) + (pv ? 1 : 0);
  count(state, sides * static_cast<double>(page.plane.size()),
        sides * 2.0 * num_rows * kPageSize * head_dim);
  count_tokens(state, kPageSize);
}

void qk_codes(benchmark::State& state, const KernelSet& set, int head_dim, int num_rows, int bits) {
  on_codes(state, set, head_dim, num_rows, bits, true, false);
}
void pv_codes(benchmark::State& state, const KernelSet& set, int head_dim, int num_rows, int bits) {
  on_codes(state, set, head_dim, num_rows, bits, false, true);
}
void decode_step(benchmark::State& state, const KernelSet& set, int head_dim, int num_rows,
                 int bits) {
  on_codes(state, set, head_dim, num_rows, bits, true, true);
}

// The same page in integers.
void in_integers(benchmark::State& state, const KernelSet& set, int head_dim, int num_rows,
                 int bits, bool qk, bool pv) {
  const Page page(set, layout_of(head_dim, bits));
  std::vector<float> q = values(num_rows, head_dim);
  for (float& x : q) x *= 0.1f;
  std::vector<std::int8_t> bytes(2 * q.size());
  std::vector<float> scales(static_cast<std::size_t>(num_rows)), sums = scales;
  set.quantize_queries(
      {q.data(), num_rows, head_dim, page.layout, bytes.data(), scales.data(), sums.data()});
  std::vector<float> logits(static_cast<std::size_t>(num_rows * kPageSize), 0x1p-10f);
  std::vector<float> out(q.size()), sum(static_cast<std::size_t>(num_rows)), rescale = sum;
  std::vector<float> max(sum.size(), -std::numeric_limits<float>::infinity());
  for (auto _ : state) {
    if (qk) {
      set.qk_integer({bytes.data(), scales.data(), sums.data(), page.plane.data(), logits.data(),
                      num_rows, kPageSize, kPageSize, page.layout});
    }
    if (qk && pv) {
      set.softmax_tile(
          {logits.data(), max.data(), sum.data(), rescale.data(), num_rows, kPageSize, kPageSize});
    }
    if (pv) {
      set.pv_integer({logits.data(), page.plane.data(), out.data(), num_rows, kPageSize, kPageSize,
                      head_dim, page.layout});
    }
    benchmark::ClobberMemory();
  }
  const double sides = (qk ? 1 : 0) + (pv ? 1 : 0);
  count(state, sides * static_cast<double>(page.plane.size()),
        sides * 2.0 * num_rows * kPageSize * head_dim);
  count_tokens(state, kPageSize);
}

void qk_integer(benchmark::State& state, const KernelSet& set, int head_dim, int num_rows,
                int bits) {
  in_integers(state, set, head_dim, num_rows, bits, true, false);
}
void pv_integer(benchmark::State& state, const KernelSet& set, int head_dim, int num_rows,
                int bits) {
  in_integers(state, set, head_dim, num_rows, bits, false, true);
}
void integer_step(benchmark::State& state, const KernelSet& set, int head_dim, int num_rows,
                  int bits) {
  in_integers(state, set, head_dim, num_rows, bits, true, true);
}

template <typename Body, typename... Arguments>
void add(const KernelSet& set, const std::string& name, Body body, Arguments... arguments) {
  benchmark::RegisterBenchmark(
      (std::string(set.name) + "/" + name).c_str(),
      [=, &set](benchmark::State& state) { body(state, set, arguments...); });
}

void register_all() {
  for (const KernelSet* set : runnable_sets()) {
    for (const int head_dim : {64, 128}) {
      const std::string d = "/d" + std::to_string(head_dim);
      for (const int rows : {1, 64}) {
        add(*set, "transform_rows" + d + "/rows" + std::to_string(rows), transform_rows, head_dim,
            rows);
      }
      add(*set, "dot_tile" + d, dot_tile, head_dim, 256);
      add(*set, "accumulate_tile" + d, accumulate_tile, head_dim, 256);
      const int heads = head_dim == 64 ? 3 : 6;
      const std::string h = d + "/heads" + std::to_string(heads);
      add(*set, "softmax_tile" + h, softmax_tile, head_dim, heads);
      for (const int bits : {2, 3, 4, kTrellis}) {
        const std::string b = bits == kTrellis ? "/trellis" : "/bits" + std::to_string(bits);
        add(*set, "encode_rows" + d + b, encode_rows, head_dim, bits);
        add(*set, "decode_rows" + d + b, decode_rows, head_dim, bits);
        add(*set, "qk_codes" + h + b, qk_codes, head_dim, heads, bits);
        add(*set, "pv_codes" + h + b, pv_codes, head_dim, heads, bits);
        add(*set, "decode_step" + h + b, decode_step, head_dim, heads, bits);
        for (const int rows : {1, heads, 96}) {
          const std::string r = d + "/heads" + std::to_string(rows) + b;
          add(*set, "qk_integer" + r, qk_integer, head_dim, rows, bits);
          add(*set, "pv_integer" + r, pv_integer, head_dim, rows, bits);
          add(*set, "integer_step" + r, integer_step, head_dim, rows, bits);
        }
      }
    }
  }
}

}  // namespace
}  // namespace oscar::kernels

int main(int argc, char** argv) {
  oscar::kernels::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
