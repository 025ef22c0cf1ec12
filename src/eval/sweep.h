// Named lists of --kv specifications that differ in one thing.
#pragma once

#include <string>
#include <vector>

namespace oscar::eval {

// Lists by name, and what each varies: for help texts and messages.
struct SweepKind {
  const char* name;
  const char* description;
};
const std::vector<SweepKind>& sweep_kinds();

// The specifications of a sweep about `base` (a --kv), itself among them. Throws
// Error(kInvalidArgument) for an unknown name, naming the known ones, for a cache of llama.cpp's
// own type, and where the base has set already what the sweep varies.
std::vector<std::string> sweep_specs(const std::string& name, const std::string& base);

}  // namespace oscar::eval
