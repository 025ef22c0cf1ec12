// oscar eval niah, oscar eval qa
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "answerers.h"
#include "eval/retrieval.h"
#include "eval/text.h"
#include "eval_commands.h"
#include "eval_report.h"

namespace oscar::tool {
namespace {

struct RetrievalCommand {
  AnswererOptions answerers;
  std::string text, questions;
  std::vector<std::int64_t> lengths;
  std::vector<double> depths = {0, 25, 50, 75, 100};
  std::vector<std::string> forms = {"passkey", "sentence"};
  eval::NiahOptions niah;
};

using Rows = std::vector<eval::RetrievalRow>;
using Filter = std::function<bool(const eval::AskedQuestion&)>;

bool everything(const eval::AskedQuestion&) { return true; }

std::string percent(double share) { return format("%.0f %%", 100 * share); }

std::string score_cell(const eval::RetrievalScore& score) {
  return percent(score.right) + " (" + percent(score.right_interval.low) + " … " +
         percent(score.right_interval.high) + ")";
}

// Lengths of all questions, ascending, each once; `value` gives the length or another part.
template <typename T, typename Value>
std::vector<T> distinct(const eval::RetrievalRow& row, const Value& value) {
  std::vector<T> values;
  for (const eval::AskedQuestion& asked : row.asked) values.push_back(value(asked));
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

std::vector<std::int64_t> lengths_of(const eval::RetrievalRow& row) {
  return distinct<std::int64_t>(row, [](const auto& asked) { return asked.context_tokens; });
}

void print_scores(const Rows& rows, std::uint64_t seed) {
  std::vector<std::vector<std::string>> table = {
      {"KV cache", "bits", "KV memory", "right (95 %)", "share"}};
  for (const std::int64_t length : lengths_of(rows.front())) {
    table[0].push_back(std::to_string(length));
  }
  for (const eval::RetrievalRow& row : rows) {
    const eval::RetrievalScore all = eval::summarize_asked(row.asked, everything, seed);
    table.push_back({row.use.label, row.use.bits > 0 ? format("%.3f", row.use.bits) : "",
                     row.use.kv_bytes > 0 ? human_bytes(row.use.kv_bytes) : "", score_cell(all),
                     percent(all.share)});
    for (const std::int64_t length : lengths_of(row)) {
      const Filter of_length = [&](const auto& asked) { return asked.context_tokens == length; };
      table.back().push_back(percent(eval::summarize_asked(row.asked, of_length, seed).right));
    }
  }
  print_table(table);
  std::printf(
      "%zu questions; right: the whole answer, share: of its digits or words; then the right ones "
      "by context length\n",
      rows.front().asked.size());
}

void print_cells(const eval::RetrievalRow& row, std::uint64_t seed) {
  const std::vector<double> depths =
      distinct<double>(row, [](const auto& asked) { return asked.depth; });
  for (const std::string& form :
       distinct<std::string>(row, [](const auto& asked) { return asked.form; })) {
    std::vector<std::vector<std::string>> table = {{row.use.label + ", " + form}};
    for (const double depth : depths) table[0].push_back("depth " + percent(depth));
    for (const std::int64_t length : lengths_of(row)) {
      table.push_back({std::to_string(length)});
      for (const double depth : depths) {
        const Filter of_cell = [&](const eval::AskedQuestion& asked) {
          return asked.form == form && asked.context_tokens == length && asked.depth == depth;
        };
        table.back().push_back(percent(eval::summarize_asked(row.asked, of_cell, seed).share));
      }
    }
    std::printf("\n");
    print_table(table);
  }
}

Json score_json(const eval::RetrievalScore& score) {
  return {{"asked", score.num_asked},
          {"right", score.right},
          {"right_ci95", interval_json(score.right_interval)},
          {"share", score.share}};
}

Json cells_json(const eval::RetrievalRow& row, std::uint64_t seed) {
  Json cells = Json::array();
  const std::vector<double> depths =
      distinct<double>(row, [](const auto& asked) { return asked.depth; });
  for (const std::string& form :
       distinct<std::string>(row, [](const auto& asked) { return asked.form; })) {
    for (const std::int64_t length : lengths_of(row)) {
      for (const double depth : depths) {
        const Filter of_cell = [&](const eval::AskedQuestion& asked) {
          return asked.form == form && asked.context_tokens == length && asked.depth == depth;
        };
        const eval::RetrievalScore score = eval::summarize_asked(row.asked, of_cell, seed);
        Json cell = {{"form", form}, {"ctx", length}, {"depth", depth}};
        cell.update(score_json(score));
        cells.push_back(cell);
      }
    }
  }
  return cells;
}

Json row_json(const eval::RetrievalRow& row, bool with_cells, std::uint64_t seed) {
  Json json;
  json["kv"] = row.use.label;
  json["method"] = row.use.method;
  if (row.use.bits > 0) json["bits"] = row.use.bits;
  if (row.use.kv_bytes > 0) json["kv_bytes"] = row.use.kv_bytes;
  json.update(score_json(eval::summarize_asked(row.asked, everything, seed)));
  for (const std::int64_t length : lengths_of(row)) {
    const Filter of_length = [&](const auto& asked) { return asked.context_tokens == length; };
    Json part = {{"ctx", length}};
    part.update(score_json(eval::summarize_asked(row.asked, of_length, seed)));
    json["by_ctx"].push_back(part);
  }
  if (with_cells) json["cells"] = cells_json(row, seed);
  for (const eval::AskedQuestion& asked : row.asked) {
    Json answer = {{"ctx", asked.context_tokens}, {"depth", asked.depth}};
    if (with_cells) {
      answer["form"] = asked.form;
      answer["seed"] = asked.seed;
    }
    answer["question"] = asked.question;
    answer["expected"] = asked.expected;
    answer["answer"] = asked.answer;
    answer["right"] = asked.right;
    answer["share"] = asked.share;
    json["answers"].push_back(answer);
  }
  return json;
}

// Runs `ask` for everyone who is asked, prints and writes.
void run_retrieval(
    const RetrievalCommand& command, const char* measure, std::string_view text,
    std::int64_t questions_each,
    const std::function<eval::RetrievalRow(eval::Answerer*, const eval::AskProgress&)>& ask) {
  Rows rows;
  Progress progress(std::string(measure) + ", questions");
  const std::int64_t longest = *std::max_element(command.lengths.begin(), command.lengths.end());
  Json document = for_each_answerer(
      command.answerers, longest, text, [&](eval::Answerer* answerer, std::size_t num_answerers) {
        const std::int64_t before = static_cast<std::int64_t>(rows.size()) * questions_each;
        rows.push_back(ask(answerer, [&](std::int64_t done) {
          progress.update(before + done, static_cast<std::int64_t>(num_answerers) * questions_each);
        }));
      });
  progress.clear();
  const bool with_cells = !rows.front().asked.front().form.empty();
  const std::uint64_t seed = command.niah.seed;
  print_scores(rows, seed);
  for (const eval::RetrievalRow& row : rows) {
    if (with_cells) print_cells(row, seed);
  }
  const std::string& path = command.answerers.common.json;
  if (path.empty()) return;
  document["measure"] = measure;
  document["text"] = std::filesystem::path(command.text).filename().string();
  document["seed"] = seed;
  if (with_cells) document["needles"] = command.niah.alone ? "alone" : "together";
  document["results"] = Json::array();
  for (const eval::RetrievalRow& row : rows) {
    document["results"].push_back(row_json(row, with_cells, seed));
  }
  write_json(path, document);
}

std::string own_or(const std::string& path, const char* name) {
  return path.empty() ? data_path(name) : path;
}

void run_niah_command(RetrievalCommand command) {
  command.text = own_or(command.text, "qa-document.txt");
  const eval::TextFile text(command.text);
  command.niah.lengths = command.lengths;
  command.niah.depths.clear();
  for (const double depth : command.depths) command.niah.depths.push_back(depth / 100);
  command.niah.forms.clear();
  for (const std::string& form : command.forms) {
    command.niah.forms.push_back(eval::needle_form_from_name(form));
  }
  run_retrieval(command, "niah", text.bytes(), command.niah.num_questions(),
                [&](eval::Answerer* answerer, const eval::AskProgress& progress) {
                  return eval::run_niah(answerer, text.bytes(), command.niah, progress);
                });
}

void run_qa_command(RetrievalCommand command) {
  const bool own = !command.text.empty();
  command.text = own_or(command.text, "qa-document.txt");
  const eval::TextFile text(command.text);
  const std::vector<eval::DocumentQuestion> questions =
      eval::load_questions(own ? command.questions : data_path("qa-questions.json"), text.bytes());
  run_retrieval(command, "qa", text.bytes(), std::ssize(questions) * std::ssize(command.lengths),
                [&](eval::Answerer* answerer, const eval::AskProgress& progress) {
                  return eval::run_qa(answerer, text.bytes(), questions, command.lengths, progress);
                });
}

CLI::App* add_retrieval(CLI::App* eval, const std::shared_ptr<RetrievalCommand>& command,
                        const char* name, const char* description,
                        std::vector<std::int64_t> lengths) {
  command->lengths = std::move(lengths);
  CLI::App* app = eval->add_subcommand(name, description);
  add_answerer_options(app, &command->answerers);
  app->add_option("-c,--ctx", command->lengths,
                  "lengths of the context in tokens, answer included; comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{256}, std::int64_t{1} << 24))
      ->capture_default_str();
  add_seed_option(app, &command->niah.seed, "of needles and confidence intervals");
  return app;
}

}  // namespace

void add_eval_niah(CLI::App* eval) {
  auto command = std::make_shared<RetrievalCommand>();
  CLI::App* app = add_retrieval(
      eval, command, "niah",
      "needles in a haystack: facts put into a text at several depths and asked for\n"
      "  oscar eval niah -m model.gguf --ctx 1024,2048,4096 --kv f16 --kv quarot --json r.json\n"
      "  oscar eval niah --url http://localhost:8080 --ctx 8192",
      {1024, 2048, 4096});
  app->add_option("-f,--file", command->text,
                  "UTF-8 text of the haystack, repeated where it is short (default: the built-in "
                  "document)");
  app->add_option("--depths", command->depths, "places of the needles, percent of the document")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0))
      ->check(finite)
      ->capture_default_str();
  app->add_option("--form", command->forms,
                  "passkey: a number of five digits; sentence: who hid what where")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--seeds", command->niah.num_seeds, "documents of different needles, each cell")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_flag("--alone", command->niah.alone,
                "one needle a document (default: those of all depths in one, read once)");
  app->callback([command] { run_niah_command(*command); });
}

void add_eval_qa(CLI::App* eval) {
  auto command = std::make_shared<RetrievalCommand>();
  CLI::App* app = add_retrieval(
      eval, command, "qa",
      "questions about a long document, read once for all of them; shorter contexts cut it off, "
      "with the questions that it then cannot answer\n"
      "  oscar eval qa -m model.gguf --ctx 2048,8192 --kv f16 --kv model.oscar.safetensors",
      {4096});
  CLI::Option* text =
      app->add_option("-f,--file", command->text, "UTF-8 document (default: the built-in one)");
  CLI::Option* questions = app->add_option(
      "--questions", command->questions,
      "JSON list of {\"question\", \"answers\": […], \"evidence\"}; the evidence is "
      "a passage of the document, word for word");
  text->needs(questions);
  questions->needs(text);
  app->callback([command] { run_qa_command(*command); });
}

}  // namespace oscar::tool
