#include "answer.h"

#include "base/error.h"
#include "eval/text.h"

namespace oscar::tool {

std::vector<llama_token> prompt_tokens(const eval::Model& model, const std::string& text,
                                       Chat chat) {
  std::string prompt;
  if (chat != Chat::kOff) prompt = eval::apply_chat_template(model, text);
  if (prompt.empty() && chat == Chat::kOn) {
    throw Error(ErrorCode::kUnsupported,
                model.path() + ": has no chat template that llama.cpp knows; use --no-chat");
  }
  const bool templated = !prompt.empty();
  return eval::tokenize(model.vocab(), templated ? prompt : text, INT32_MAX, templated);
}

Answer ask(eval::Workbench* workbench, const eval::KvChoice& kv,
           const std::vector<llama_token>& prompt, std::int64_t num_tokens,
           std::int64_t max_new_tokens, const eval::SamplingOptions& sampling,
           const std::function<void(std::string_view)>& on_text) {
  Answer answer;
  answer.kv = kv;
  const std::unique_ptr<eval::Context> context = workbench->open(kv, num_tokens, 1);
  answer.generation = eval::generate(context.get(), prompt, max_new_tokens, sampling, on_text);
  answer.use = workbench->use(*context, kv);
  return answer;
}

Json answer_json(const Answer& answer) {
  const eval::Generation& generation = answer.generation;
  Json json;
  json["kv"] = answer.kv.label;
  json["method"] = answer.use.method;
  json["bits"] = answer.use.bits;
  json["kv_bytes"] = answer.use.kv_bytes;
  if (answer.use.kv_bytes_reserved > 0) {
    json["kv_bytes_reserved"] = answer.use.kv_bytes_reserved;
    json["attention_by_plugin"] = answer.use.num_attended;
    json["attention_elsewhere"] = answer.use.num_attended_elsewhere;
  }
  json["answer"] = generation.text;
  json["prompt_tokens"] = generation.num_prompt_tokens;
  json["new_tokens"] = generation.num_new_tokens;
  json["prefill_tokens_per_s"] = generation.prefill_tokens_per_second();
  json["decode_tokens_per_s"] = generation.decode_tokens_per_second();
  return json;
}

}  // namespace oscar::tool
