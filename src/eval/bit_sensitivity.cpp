#include "eval/bit_sensitivity.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "eval/scoring.h"

namespace oscar::eval {
namespace {

constexpr std::int64_t kScoredTokens = kSensitivityTokens / 2;
constexpr std::int64_t kScoredStep = 64;  // outputs of one decode: their logits are kept until read
constexpr int kExactBits = 16, kFewestBits = 2;

// The plugin takes artefacts from files.
class TemporaryFile {
 public:
  TemporaryFile()
      : path_((std::filesystem::temp_directory_path() /
               ("oscar-sensitivity-" + std::to_string(::getpid()) + ".safetensors"))
                  .string()) {}
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs the text and hands the logits of each scored position to `take(index, logits)`.
template <typename Take>
void run(Context* context, std::span<const llama_token> text, const Take& take) {
  const auto length = static_cast<std::int64_t>(text.size());
  for (std::int64_t start = 0; start < length;) {
    const std::int64_t first_scored = length - kScoredTokens;
    const bool scored = start >= first_scored;
    const std::int64_t count = scored ? std::min(kScoredStep, length - start)
                                      : std::min(kBatchTokens, first_scored - start);
    context->decode(text.subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(count)),
                    scored ? count : 0);
    if (scored) take(start - first_scored, count);
    start += count;
  }
}

}  // namespace

std::vector<calibrate::LayerSensitivity> measure_sensitivity(
    Workbench* workbench, const Artefact& artefact, std::span<const llama_token> tokens,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress) {
  if (static_cast<std::int64_t>(tokens.size()) != kSensitivityTokens) {
    throw Error(ErrorCode::kInvalidArgument,
                "sensitivity is measured on " + std::to_string(kSensitivityTokens) +
                    " tokens; given: " + std::to_string(tokens.size()));
  }
  std::vector<llama_token> text(tokens.begin(), tokens.end());
  const llama_vocab* vocab = workbench->vocab();
  if (llama_vocab_get_add_bos(vocab)) text[0] = llama_vocab_bos(vocab);

  std::vector<float> reference;
  std::int64_t vocab_size = 0;
  {
    const auto context =
        workbench->open(choose_kv("naive:k16v16"), kSensitivityTokens, kScoredStep);
    vocab_size = context->model().vocab_size();
    reference.resize(static_cast<std::size_t>(kScoredTokens * vocab_size));
    run(context.get(), text, [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t row = 0; row < count; ++row) {
        std::copy_n(context->logits(row), vocab_size,
                    reference.data() + (first + row) * vocab_size);
      }
    });
  }
  const TemporaryFile file;
  const auto loss_of = [&](const Artefact& variant) {
    save_artefact(variant, file.path());
    const KvChoice kv = choose_kv(file.path() + ":recent=" + std::to_string(kSensitivityRecent));
    const auto context = workbench->open(kv, kSensitivityTokens, kScoredStep);
    double sum = 0;
    std::vector<PositionScore> scores(static_cast<std::size_t>(kScoredStep));
    run(context.get(), text, [&](std::int64_t first, std::int64_t count) {
      parallel_for(workbench->num_threads(), count, [&](std::int64_t row, int) {
        scores[static_cast<std::size_t>(row)] =
            score_position(reference.data() + (first + row) * vocab_size, context->logits(row),
                           vocab_size, text.back());
      });
      for (std::int64_t row = 0; row < count; ++row) {
        const PositionScore& score = scores[static_cast<std::size_t>(row)];
        if (!score.finite) {
          throw Error(ErrorCode::kCorrupt, "the model's logits hold NaN or Inf at token " +
                                               std::to_string(kScoredTokens + first + row));
        }
        sum += score.kl;
      }
    });
    return sum / static_cast<double>(kScoredTokens);
  };

  Artefact variant = artefact;
  for (ArtefactLayer& layer : variant.layers) layer.k_bits = layer.v_bits = kExactBits;
  std::vector<calibrate::LayerSensitivity> sensitivities(variant.layers.size());
  const auto num_passes = static_cast<std::int64_t>(2 * variant.layers.size());
  std::int64_t done = 0;
  for (std::size_t i = 0; i < variant.layers.size(); ++i) {
    for (const auto& [bits, loss] :
         {std::pair{&variant.layers[i].k_bits, &sensitivities[i].keys},
          std::pair{&variant.layers[i].v_bits, &sensitivities[i].values}}) {
      *bits = kFewestBits;
      *loss = loss_of(variant);
      *bits = kExactBits;
      workbench->host().throw_if_stopped();
      if (progress) progress(++done, num_passes);
    }
  }
  return sensitivities;
}

}  // namespace oscar::eval
