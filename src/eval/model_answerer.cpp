#include "eval/model_answerer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "eval/generate.h"
#include "eval/scoring.h"
#include "eval/text.h"

namespace oscar::eval {
namespace {

// The document stays in the first stream, questions are answered in the second.
constexpr int kDocument = 0, kQuestion = 1;
constexpr int kHostStreams = 2;
// The plugin plans its exact copies for the streams that there are. An answer that is thrown away
// leaves its copies behind until their cells are written again; with room for one stream more
// they displace none of the document's, so that an answer does not depend on those before.
constexpr int kPluginStreams = 3;
// Stands for the document while the chat template is filled in; no text holds it.
constexpr const char* kPlaceholder = "\x01oscar-document\x01";
constexpr const char* kSeparator = "\n\n";

// The likeliest token; NaN anywhere is an error.
llama_token likeliest(const float* logits, std::int64_t vocab_size, const std::string& label) {
  if (!std::isfinite(log_probability(logits, vocab_size, 0))) {
    throw Error(ErrorCode::kCorrupt, "--kv " + label + ": the logits of an answer hold NaN or Inf");
  }
  return static_cast<llama_token>(std::max_element(logits, logits + vocab_size) - logits);
}

}  // namespace

ModelAnswerer::ModelAnswerer(Workbench* workbench, KvChoice kv, std::int64_t context_tokens)
    : workbench_(*workbench), kv_(std::move(kv)), context_tokens_(context_tokens) {}

std::int64_t ModelAnswerer::count_tokens(std::string_view text) {
  return static_cast<std::int64_t>(tokenize(workbench_.vocab(), text,
                                            std::numeric_limits<std::int32_t>::max(),
                                            /*parse_special=*/false)
                                       .size());
}

std::pair<std::string, std::string> ModelAnswerer::around_document(std::string_view question) {
  const std::string user = kPlaceholder + std::string(kSeparator) + std::string(question);
  std::string prompt = apply_chat_template(workbench_.model(Placement::kHost), user);
  if (prompt.empty()) prompt = user + "\nAnswer:";
  const std::size_t at = prompt.find(kPlaceholder);
  if (at == std::string::npos) {
    throw Error(ErrorCode::kUnsupported,
                workbench_.file().path + ": its chat template does not show the user's text");
  }
  return {prompt.substr(0, at), prompt.substr(at + std::string_view(kPlaceholder).size())};
}

void ModelAnswerer::read(std::string_view document) {
  // Special tokens are those of the template alone: the document is tokenised apart.
  document_ = tokenize(workbench_.vocab(), around_document("").first, context_tokens_, true);
  if (document_.empty() && llama_vocab_get_add_bos(workbench_.vocab())) {
    document_.push_back(llama_vocab_bos(workbench_.vocab()));
  }
  const std::vector<llama_token> body =
      tokenize_more(workbench_.vocab(), document, context_tokens_, false);
  document_.insert(document_.end(), body.begin(), body.end());
  if (std::ssize(document_) >= context_tokens_) {
    throw Error(ErrorCode::kInvalidArgument,
                "the document leaves no room for a question in a context of " +
                    std::to_string(context_tokens_) + " tokens");
  }
  if (!context_) {
    OpenOptions options;
    options.num_tokens = context_tokens_;
    options.num_streams = kv_.spec.kind == KvSpec::Kind::kHostType ? kHostStreams : kPluginStreams;
    context_ = workbench_.open(kv_, options);
  }
  context_->clear();
  prefill(context_.get());
}

void ModelAnswerer::prefill(Context* context) const {
  for (std::size_t start = 0; start < document_.size(); start += kBatchTokens) {
    const std::size_t count = std::min<std::size_t>(kBatchTokens, document_.size() - start);
    context->decode(std::span(document_).subspan(start, count), 0);
  }
}

AnswererUse ModelAnswerer::use() {
  const std::unique_ptr<Context> alone =
      workbench_.open(kv_, std::ssize(document_), /*max_outputs=*/1);
  prefill(alone.get());
  const KvUse use = workbench_.use(*alone, kv_);
  return {kv_.label, use.method, use.bits, use.kv_bytes};
}

std::string ModelAnswerer::answer(std::string_view question, std::int64_t max_new_tokens) {
  const std::vector<llama_token> tokens = tokenize_more(
      workbench_.vocab(), around_document(question).second, context_tokens_, /*special=*/true);
  const std::int64_t needed =
      context_->num_tokens() + static_cast<std::int64_t>(tokens.size()) + max_new_tokens;
  if (needed > context_tokens_) {
    throw Error(ErrorCode::kInvalidArgument,
                "the question of " + std::to_string(tokens.size()) + " tokens and " +
                    std::to_string(max_new_tokens) + " for its answer do not fit behind " +
                    std::to_string(context_->num_tokens()) +
                    " tokens of document in a context of " + std::to_string(context_tokens_));
  }
  context_->fork(kDocument, kQuestion);
  context_->decode_on(kQuestion, tokens, 1);
  std::string text;
  const std::int64_t vocab_size = context_->model().vocab_size();
  for (std::int64_t i = 0; i < max_new_tokens; ++i) {
    const llama_token token = likeliest(context_->logits(0), vocab_size, kv_.label);
    if (llama_vocab_is_eog(workbench_.vocab(), token)) break;
    text += token_text(workbench_.vocab(), token);
    if (i + 1 < max_new_tokens) context_->decode_on(kQuestion, {&token, 1}, 1);
  }
  return text;
}

}  // namespace oscar::eval
