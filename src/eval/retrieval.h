// Retrieval tests: needles over a grid of depths and lengths, and questions about a document.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/answerer.h"
#include "eval/bootstrap.h"
#include "eval/needles.h"

namespace oscar::eval {

// One question and what came of it.
struct AskedQuestion {
  std::int64_t context_tokens = 0;
  double depth = 0;        // of the needle or the passage, 0 to 1
  std::string form;        // of a needle; "" for a question of a document
  std::uint64_t seed = 0;  // of the needles
  std::string question, expected, answer;
  bool right = false;
  double share = 0;  // of digits or words, see NeedleScore; of a document's question 0 or 1
};

struct RetrievalRow {
  AnswererUse use;  // of the longest document
  std::vector<AskedQuestion> asked;
};

// Asked and of how many, of all rows together. May be null.
using AskProgress = std::function<void(std::int64_t done)>;

struct NiahOptions {
  std::vector<std::int64_t> lengths = {1024, 2048, 4096};  // of the context, answer included
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  std::vector<NeedleForm> forms = {NeedleForm::kPasskey, NeedleForm::kSentence};
  int num_seeds = 2;
  std::uint64_t seed = 1;
  // true: a document holds the needle of one depth; false: those of all depths, each asked about,
  // so that it is read once for all of them and each is a distractor of the others.
  bool alone = false;

  std::int64_t num_questions() const;
};

// Refuses before anything is asked what cannot be built; see make_haystack.
RetrievalRow run_niah(Answerer* answerer, std::string_view text, const NiahOptions& options,
                      const AskProgress& progress);

struct DocumentQuestion {
  std::string question;
  std::vector<std::string> answers;  // each of them right
  std::string evidence;              // the passage of the document that answers it, word for word
};

// A JSON list of {"question", "answers", "evidence"}. Throws Error naming the file, the question
// and what is wrong: an evidence that the document does not hold, or not once; no answers.
std::vector<DocumentQuestion> load_questions(const std::string& path, std::string_view document);

// The document is cut to each context's length; questions whose evidence was cut off are left out.
// Throws Error(kInvalidArgument) where none is left.
RetrievalRow run_qa(Answerer* answerer, std::string_view document,
                    const std::vector<DocumentQuestion>& questions,
                    const std::vector<std::int64_t>& contexts, const AskProgress& progress);

// What a part of the questions came to.
struct RetrievalScore {
  std::int64_t num_asked = 0;
  double right = 0, share = 0;  // means
  Interval right_interval;      // 95 %, the questions taken as independent
};
RetrievalScore summarize_asked(const std::vector<AskedQuestion>& asked,
                               const std::function<bool(const AskedQuestion&)>& counts,
                               std::uint64_t seed);

}  // namespace oscar::eval
