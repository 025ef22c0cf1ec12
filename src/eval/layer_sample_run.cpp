// Rows of every layer from one pass of the model with exact keys and values.
#include <memory>
#include <span>

#include "base/error.h"
#include "eval/layer_errors.h"

namespace oscar::eval {
namespace {

// Feeds the collector while it lives, whatever is thrown.
class Collecting {
 public:
  Collecting(const Plugin& plugin, calibrate::Collector* collector) : plugin_(plugin) {
    plugin_.set_collector(collector);
  }
  ~Collecting() { plugin_.set_collector(nullptr); }
  Collecting(const Collecting&) = delete;
  Collecting& operator=(const Collecting&) = delete;

 private:
  const Plugin& plugin_;
};

}  // namespace

calibrate::Statistics sample_rows(Workbench* workbench, const std::vector<llama_token>& tokens,
                                  const LayerErrorOptions& options) {
  check_packed_cache_supports(workbench->file());
  calibrate::CollectorOptions collector_options;
  collector_options.sampled_keys = options.num_tokens;
  collector_options.sampled_queries = options.num_queries;
  collector_options.seed = options.seed;
  calibrate::Collector collector(collector_options);
  const std::unique_ptr<Context> context = workbench->open_exact(options.num_tokens);
  const Collecting collecting(workbench->host().plugin(), &collector);
  for (std::int64_t start = 0; start < options.num_tokens;) {
    const std::int64_t count = std::min(kBatchTokens, options.num_tokens - start);
    context->decode({tokens.data() + start, static_cast<std::size_t>(count)}, 0);
    start += count;
    if (options.progress) options.progress(start, options.num_tokens);
  }
  if (collector.statistics().num_non_finite > 0) {
    throw Error(ErrorCode::kCorrupt,
                workbench->file().path + ": " +
                    std::to_string(collector.statistics().num_non_finite) +
                    " rows of keys, values or queries held NaN or Inf; its weights are broken");
  }
  return collector.statistics();
}

}  // namespace oscar::eval
