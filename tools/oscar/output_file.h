// Files that commands write: found unusable before the work, and never in place of something else.
#pragma once

#include <functional>
#include <string>

namespace oscar::tool {

enum class OutputKind { kJson, kArtefact };

// Throws Error when `path` cannot be written, or holds something that is not empty and not of this
// kind: a model, a text or somebody's notes are never replaced. What is there is not touched.
void check_output(const std::string& path, OutputKind kind);

// The same as a check of a command-line option: the reason in one line, "" if there is none.
std::function<std::string(const std::string&)> output_check(OutputKind kind);

// Throws Error when both names are one file: the second would replace the first.
void check_distinct(const std::string& first, const std::string& second);

}  // namespace oscar::tool
