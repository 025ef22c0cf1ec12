#include "eval/model_bench.h"

#include <algorithm>
#include <memory>

#include "eval/attention_timer.h"
#include "eval/fill_context.h"

namespace oscar::eval {
namespace {

constexpr int kShareSteps = 3;

// A cache, its context and what is measured of it.
struct Contender {
  const KvChoice* kv = nullptr;
  std::string method;
  AttentionTimer timer;
  std::unique_ptr<Context> context;
  std::unique_ptr<ContextFiller> filler;
  std::vector<double> tokens_per_s, instructions;  // instructions: a token
  double attention_share = 0;
};

// Runs `work`, which decodes num_tokens tokens, and notes how long it took; returns that, in s.
template <typename Work>
double measure(Contender* contender, const ModelBenchOptions& options, std::int64_t num_tokens,
               Work work) {
  const auto tokens = static_cast<double>(num_tokens);
  const std::optional<double> before = count_of(options.instructions);
  const TimingClock::time_point start = TimingClock::now();
  work();
  const double seconds = seconds_since(start);
  contender->tokens_per_s.push_back(tokens / seconds);
  if (before) {
    contender->instructions.push_back((count_of(options.instructions).value() - *before) / tokens);
  }
  return seconds;
}

std::vector<std::unique_ptr<Contender>> open_all(Workbench* workbench,
                                                 std::span<const llama_token> tokens,
                                                 const std::vector<KvChoice>& kvs,
                                                 std::int64_t context_tokens) {
  workbench->check_context(context_tokens);
  std::vector<std::unique_ptr<Contender>> contenders;
  for (const KvChoice& kv : kvs) {
    auto contender = std::make_unique<Contender>();
    contender->kv = &kv;
    OpenOptions options;
    options.num_tokens = context_tokens;
    options.num_sequences = 2;  // the second is what the cells are copied by
    options.eval_callback = AttentionTimer::on_node;
    options.eval_callback_data = &contender->timer;
    contender->context = workbench->open(kv, options);
    // Brings the weights into memory.
    contender->context->decode(tokens.first(1), 1);
    contender->method = workbench->use(*contender->context, kv).method;
    contender->context->clear();
    contender->filler = std::make_unique<ContextFiller>(contender->context.get(), tokens);
    contenders.push_back(std::move(contender));
  }
  return contenders;
}

ModelBenchRow row_of(const Contender& contender, std::int64_t depth, int threads) {
  ModelBenchRow row;
  row.kv = contender.kv->label;
  row.method = contender.method;
  row.depth = depth;
  row.threads = threads;
  row.tokens_per_s = spread_of(contender.tokens_per_s);
  row.attention_share = contender.attention_share;
  if (!contender.instructions.empty()) {
    row.instructions_per_token = spread_of(contender.instructions).median;
  }
  return row;
}

std::vector<std::int64_t> ascending(std::vector<std::int64_t> depths) {
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  return depths;
}

}  // namespace

std::int64_t decode_context_tokens(const ModelBenchOptions& options) {
  const std::vector<std::int64_t> depths = ascending(options.depths);
  const std::int64_t measured = std::int64_t{options.rounds} * options.steps + kShareSteps + 1;
  return depths.back() + measured * std::ssize(depths);
}

std::vector<ModelBenchRow> bench_decode(Workbench* workbench, std::span<const llama_token> tokens,
                                        const std::vector<KvChoice>& kvs,
                                        const ModelBenchOptions& options) {
  const std::vector<std::int64_t> depths = ascending(options.depths);
  const auto contenders = open_all(workbench, tokens, kvs, decode_context_tokens(options));
  const std::int64_t turns =
      std::ssize(depths) * std::ssize(contenders) * std::int64_t{options.rounds + 1};
  std::int64_t done = 0;
  const auto tell = [&] {
    if (options.progress) options.progress(++done, turns);
  };
  std::vector<ModelBenchRow> rows;
  for (const std::int64_t depth : depths) {
    for (const auto& contender : contenders) {
      contender->filler->fill_to(depth);
      contender->tokens_per_s.clear();
      contender->instructions.clear();
      contender->filler->step();  // a graph of this shape, for the first time
      tell();
    }
    for (int round = 0; round < options.rounds; ++round) {
      for (const auto& contender : contenders) {
        for (int step = 0; step < options.steps; ++step) {
          measure(contender.get(), options, 1, [&] { contender->filler->step(); });
        }
        tell();
      }
    }
    for (const auto& contender : contenders) {
      contender->timer.start();
      const TimingClock::time_point start = TimingClock::now();
      for (int step = 0; step < kShareSteps; ++step) contender->filler->step();
      contender->attention_share = contender->timer.stop() / seconds_since(start);
      rows.push_back(row_of(*contender, depth, workbench->num_threads()));
    }
  }
  return rows;
}

std::vector<ModelBenchRow> bench_prefill(Workbench* workbench, std::span<const llama_token> tokens,
                                         const std::vector<KvChoice>& kvs,
                                         const ModelBenchOptions& options) {
  const std::vector<std::int64_t> depths = ascending(options.depths);
  const auto contenders = open_all(workbench, tokens, kvs, depths.back());
  const std::int64_t turns =
      std::ssize(depths) * std::ssize(contenders) * std::int64_t{options.rounds};
  std::int64_t done = 0;
  std::vector<ModelBenchRow> rows;
  for (const std::int64_t depth : depths) {
    std::vector<double> attention(contenders.size()), total(contenders.size());
    for (const auto& contender : contenders) {
      contender->tokens_per_s.clear();
      contender->instructions.clear();
    }
    for (int round = 0; round < options.rounds; ++round) {
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        Contender& contender = *contenders[i];
        contender.context->clear();
        contender.timer.start();
        total[i] += measure(&contender, options, depth, [&] {
          for (std::int64_t at = 0; at < depth; at += kBatchTokens) {
            std::vector<llama_token> batch;
            for (std::int64_t t = at; t < std::min(at + kBatchTokens, depth); ++t) {
              batch.push_back(tokens[static_cast<std::size_t>(t) % tokens.size()]);
            }
            contender.context->decode(batch, at + kBatchTokens >= depth ? 1 : 0);
          }
        });
        attention[i] += contender.timer.stop();
        if (options.progress) options.progress(++done, turns);
      }
    }
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      contenders[i]->attention_share = attention[i] / total[i];
      rows.push_back(row_of(*contenders[i], depth, workbench->num_threads()));
    }
  }
  return rows;
}

}  // namespace oscar::eval
