#include "eval/kernel_bench.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

#include "base/error.h"
#include "eval/ggml_layer.h"
#include "eval/host.h"
#include "kernels/kernels.h"

namespace oscar::eval {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr std::uint64_t kDefaultCacheBytes = std::uint64_t{32} << 20;
constexpr int kBandwidthRounds = 5;

std::uint64_t flush_bytes() {
  const long last_level = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  return 2 * (last_level > 0 ? static_cast<std::uint64_t>(last_level) : kDefaultCacheBytes);
}

std::uint64_t sum_of(const std::uint64_t* words, std::uint64_t count) {
  std::uint64_t sums[8] = {};
  for (std::uint64_t i = 0; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
  }
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

// Reading it drives everything else out of the processor's caches.
class Flusher {
 public:
  Flusher() : words_(flush_bytes() / sizeof(std::uint64_t), 1) {}
  void operator()() { sink_ = sink_ + sum_of(words_.data(), words_.size()); }

 private:
  std::vector<std::uint64_t> words_;
  volatile std::uint64_t sink_ = 0;
};

struct Contender {
  const KvChoice* kv = nullptr;
  std::unique_ptr<SyntheticLayer> ours;
  std::unique_ptr<GgmlLayer> ggml;  // host types
  attention::Plan plan;
  AlignedBuffer<std::uint8_t> workspace;
  std::vector<double> ns, instructions;

  void attend() {
    if (ggml) {
      ggml->attend();
    } else {
      attention::run(plan, ours->params(), workspace.data());
    }
  }
  void encode(int num_threads) {
    if (ggml) {
      ggml->encode();
    } else {
      ours->encode(num_threads);
    }
  }
  std::vector<float> out() const { return ggml ? ggml->out() : ours->out(); }
  std::uint64_t bytes() const { return ggml ? ggml->cache_bytes() : ours->coded_bytes(); }
};

std::unique_ptr<Contender> make_contender(const KvChoice& kv, const SyntheticShape& shape,
                                          int num_threads) {
  auto contender = std::make_unique<Contender>();
  contender->kv = &kv;
  const bool host = kv.spec.kind == KvSpec::Kind::kHostType;
  const KvSpec spec = host ? parse_kv_spec("naive:k16v16") : kv.spec;
  contender->ours =
      std::make_unique<SyntheticLayer>(spec, shape, kernels::selected_kernel_set(), kSeed);
  if (host) {
    contender->ggml =
        std::make_unique<GgmlLayer>(*contender->ours, host_type(kv.spec.host_type), num_threads);
    return contender;
  }
  contender->plan = attention::plan(contender->ours->attention_shape(), num_threads);
  contender->workspace = AlignedBuffer<std::uint8_t>(contender->plan.workspace_bytes);
  return contender;
}

// Of the last query, whose fp64 result the layer knows.
double error_of(const Contender& contender) {
  const std::vector<double> right = contender.ours->reference();
  const std::vector<float> out = contender.out();
  const std::size_t first = out.size() - right.size();
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    error += std::pow(static_cast<double>(out[first + i]) - right[i], 2);
    norm += right[i] * right[i];
  }
  return std::sqrt(error / norm);
}

template <typename Call>
std::vector<KernelBenchRow> measure(const std::vector<KvChoice>& kvs,
                                    const KernelBenchOptions& options, bool attends, Call call) {
  Flusher flush;
  std::vector<KernelBenchRow> rows;
  std::int64_t done = 0;
  const std::int64_t total =
      std::ssize(options.depths) * std::ssize(kvs) * std::int64_t{options.rounds};
  for (const std::int64_t depth : options.depths) {
    SyntheticShape shape = options.shape;
    shape.num_tokens = depth;
    if (shape.num_queries > depth) {
      throw Error(ErrorCode::kInvalidArgument, std::to_string(shape.num_queries) +
                                                   " queries do not fit in a depth of " +
                                                   std::to_string(depth));
    }
    std::vector<std::unique_ptr<Contender>> contenders;
    for (const KvChoice& kv : kvs) {
      throw_if_stopped(options.stop);
      contenders.push_back(make_contender(kv, shape, options.num_threads));
      call(contenders.back().get());
    }
    for (int round = 0; round < options.rounds; ++round) {
      for (const auto& contender : contenders) {
        throw_if_stopped(options.stop);
        flush();
        const std::optional<double> before = count_of(options.instructions);
        const TimingClock::time_point start = TimingClock::now();
        call(contender.get());
        contender->ns.push_back(1e9 * seconds_since(start));
        if (before) {
          contender->instructions.push_back(count_of(options.instructions).value() - *before);
        }
        if (options.progress) options.progress(++done, total);
      }
    }
    for (const auto& contender : contenders) {
      KernelBenchRow row;
      row.kv = contender->kv->label;
      const KvSpec& spec = contender->kv->spec;
      row.method = contender->ggml ? spec.host_type : method_name(spec.method);
      row.kernels = contender->ggml ? "ggml" : contender->ours->codec().kernels().name;
      row.depth = depth;
      row.threads = options.num_threads;
      row.ns = spread_of(contender->ns);
      const std::int64_t queries = attends ? shape.num_queries : 1;
      const auto num_rows = static_cast<double>(depth * shape.num_kv_heads * queries);
      row.ns_per_token = row.ns.median / num_rows;
      if (!contender->instructions.empty()) {
        row.instructions_per_token = spread_of(contender->instructions).median / num_rows;
      }
      row.bytes = contender->bytes();
      row.gigabytes_per_s = static_cast<double>(row.bytes) / row.ns.median;
      if (attends) row.relative_error = error_of(*contender);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace

std::vector<KernelBenchRow> bench_attention(const std::vector<KvChoice>& kvs,
                                            const KernelBenchOptions& options) {
  return measure(kvs, options, /*attends=*/true, [](Contender* c) { c->attend(); });
}

std::vector<KernelBenchRow> bench_encode(const std::vector<KvChoice>& kvs,
                                         const KernelBenchOptions& options) {
  return measure(kvs, options, /*attends=*/false,
                 [&](Contender* c) { c->encode(options.num_threads); });
}

double read_bandwidth(int num_threads) {
  const std::uint64_t words = flush_bytes() / sizeof(std::uint64_t);
  const std::vector<std::uint64_t> buffer(words * static_cast<std::uint64_t>(num_threads), 1);
  std::atomic<std::uint64_t> sink{0};
  double best = 0;
  for (int round = 0; round < kBandwidthRounds; ++round) {
    const TimingClock::time_point start = TimingClock::now();
    std::vector<std::thread> threads;
    for (int t = 0; t < num_threads; ++t) {
      threads.emplace_back(
          [&, t] { sink += sum_of(buffer.data() + words * static_cast<std::uint64_t>(t), words); });
    }
    for (std::thread& thread : threads) thread.join();
    const double bytes = static_cast<double>(buffer.size() * sizeof(std::uint64_t));
    best = std::max(best, 1e-9 * bytes / seconds_since(start));
  }
  return best;
}

}  // namespace oscar::eval
