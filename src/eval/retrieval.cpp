#include "eval/retrieval.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "eval/answer_scoring.h"
#include "eval/text.h"

namespace oscar::eval {
namespace {

TokenCounter counter_of(Answerer* answerer) {
  return [answerer](std::string_view text) { return answerer->count_tokens(text); };
}

class NiahRun {
 public:
  NiahRun(Answerer* answerer, std::string_view text, const NiahOptions& options,
          const AskProgress& progress)
      : answerer_(*answerer), text_(text), options_(options), progress_(progress) {}

  RetrievalRow run() {
    const std::int64_t longest =
        *std::max_element(options_.lengths.begin(), options_.lengths.end());
    for (const std::int64_t length : options_.lengths) {
      for (const NeedleForm form : options_.forms) {
        for (int i = 0; i < options_.num_seeds; ++i) run_documents(length, form, i);
      }
      if (length == longest) row_.use = answerer_.use();
    }
    return std::move(row_);
  }

 private:
  void run_documents(std::int64_t length, NeedleForm form, int index) {
    const std::uint64_t seed = options_.seed + static_cast<std::uint64_t>(index);
    const std::vector<Needle> needles =
        make_needles(form, static_cast<int>(options_.depths.size()), seed);
    if (!options_.alone) return run_document(length, seed, needles, options_.depths);
    for (std::size_t i = 0; i < needles.size(); ++i) {
      run_document(length, seed, {needles[i]}, {options_.depths[i]});
    }
  }

  void run_document(std::int64_t length, std::uint64_t seed, const std::vector<Needle>& needles,
                    const std::vector<double>& depths) {
    answerer_.read(
        make_haystack(text_, needles, depths, length - kReservedTokens, counter_of(&answerer_)));
    for (std::size_t i = 0; i < needles.size(); ++i) {
      AskedQuestion asked;
      asked.context_tokens = length;
      asked.depth = depths[i];
      asked.form = needle_form_name(needles[i].form);
      asked.seed = seed;
      asked.question = needles[i].question;
      asked.expected = needles[i].expected;
      asked.answer = answerer_.answer(needles[i].question, kMaxAnswerTokens);
      const NeedleScore score = score_needle(needles[i], asked.answer);
      asked.right = score.right;
      asked.share = score.share;
      row_.asked.push_back(std::move(asked));
      if (progress_) progress_(static_cast<std::int64_t>(row_.asked.size()));
    }
  }

  Answerer& answerer_;
  std::string_view text_;
  const NiahOptions& options_;
  const AskProgress& progress_;
  RetrievalRow row_;
};

DocumentQuestion parse_question(const nlohmann::json& entry, std::string_view document) {
  DocumentQuestion question;
  entry.at("question").get_to(question.question);
  entry.at("answers").get_to(question.answers);
  entry.at("evidence").get_to(question.evidence);
  const auto bad = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, in_quotes(question.question) + " " + why);
  };
  if (question.answers.empty()) bad("has no answers");
  const std::size_t at = document.find(question.evidence);
  if (question.evidence.empty() || at == std::string_view::npos) {
    bad("has an evidence that the document does not hold: " + in_quotes(question.evidence));
  }
  if (document.find(question.evidence, at + 1) != std::string_view::npos) {
    bad("has an evidence that the document holds more than once: " + in_quotes(question.evidence));
  }
  return question;
}

}  // namespace

std::int64_t NiahOptions::num_questions() const {
  return std::ssize(lengths) * std::ssize(depths) * std::ssize(forms) * num_seeds;
}

RetrievalRow run_niah(Answerer* answerer, std::string_view text, const NiahOptions& options,
                      const AskProgress& progress) {
  const auto count = static_cast<int>(options.alone ? 1 : options.depths.size());
  for (const std::int64_t length : options.lengths) {
    for (const NeedleForm form : options.forms) {
      const std::vector<double> depths(options.depths.begin(), options.depths.begin() + count);
      make_haystack(text, make_needles(form, count, options.seed), depths, length - kReservedTokens,
                    counter_of(answerer));
    }
  }
  return NiahRun(answerer, text, options, progress).run();
}

std::vector<DocumentQuestion> load_questions(const std::string& path, std::string_view document) {
  const TextFile file(path);
  const nlohmann::json list = nlohmann::json::parse(file.bytes(), nullptr, false);
  if (!list.is_array() || list.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                path +
                    ": is no JSON list of questions; each is an object of question, answers, "
                    "evidence");
  }
  std::vector<DocumentQuestion> questions;
  for (const nlohmann::json& entry : list) {
    const std::string place = path + ": question " + std::to_string(questions.size() + 1) + ": ";
    try {
      questions.push_back(parse_question(entry, document));
    } catch (const nlohmann::json::exception&) {
      throw Error(ErrorCode::kInvalidArgument,
                  place + "needs question (text), answers (list of texts), evidence (text)");
    } catch (const Error& error) {
      throw Error(error.code(), place + error.what());
    }
  }
  return questions;
}

RetrievalRow run_qa(Answerer* answerer, std::string_view document,
                    const std::vector<DocumentQuestion>& questions,
                    const std::vector<std::int64_t>& contexts, const AskProgress& progress) {
  RetrievalRow row;
  const std::int64_t longest = *std::max_element(contexts.begin(), contexts.end());
  for (const std::int64_t context : contexts) {
    const std::string_view part =
        cut_to_tokens(document, context - kReservedTokens, counter_of(answerer));
    const std::size_t before = row.asked.size();
    for (const DocumentQuestion& question : questions) {
      const std::size_t at = part.find(question.evidence);
      if (at == std::string_view::npos) continue;
      if (row.asked.size() == before) answerer->read(part);
      AskedQuestion asked;
      asked.context_tokens = context;
      asked.depth = static_cast<double>(at) / static_cast<double>(part.size());
      asked.question = question.question;
      asked.expected = question.answers.front();
      asked.answer =
          answerer->answer(question.question + " Answer in a few words.", kMaxAnswerTokens);
      asked.right = answer_is_right(asked.answer, question.answers);
      asked.share = asked.right;
      row.asked.push_back(std::move(asked));
      if (progress) progress(static_cast<std::int64_t>(row.asked.size()));
    }
    if (row.asked.size() == before) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--ctx " + std::to_string(context) +
                      " cuts the document off before the answer of every question; use a longer "
                      "one");
    }
    if (context == longest) row.use = answerer->use();
  }
  return row;
}

RetrievalScore summarize_asked(const std::vector<AskedQuestion>& asked,
                               const std::function<bool(const AskedQuestion&)>& counts,
                               std::uint64_t seed) {
  RetrievalScore score;
  std::vector<double> right;
  for (const AskedQuestion& question : asked) {
    if (!counts(question)) continue;
    right.push_back(question.right);
    score.right += question.right;
    score.share += question.share;
  }
  score.num_asked = static_cast<std::int64_t>(right.size());
  if (right.empty()) return score;
  score.right /= static_cast<double>(right.size());
  score.share /= static_cast<double>(right.size());
  BootstrapOptions bootstrap;
  bootstrap.seed = seed;
  score.right_interval = bootstrap_mean(right, bootstrap);
  return score;
}

}  // namespace oscar::eval
