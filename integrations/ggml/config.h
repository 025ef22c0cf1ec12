// What contexts created from now on use: the --kv spec, the artefact it names, and the environment.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "format/artefact.h"
#include "format/kv_spec.h"

namespace oscar::ggml_plugin {

struct Config {
  KvSpec spec;
  std::shared_ptr<const Artefact>
      artefact;  // of a FILE, overrides applied; null: a data-free method
  std::optional<int>
      copied_sequences;        // OSCAR_COPIES: sequences of one stream with a window of their own
  bool allow_partial = false;  // OSCAR_PARTIAL=1: some layers may lie elsewhere
  // What is wrong with OSCAR_LOG, OSCAR_COPIES, OSCAR_PARTIAL, and why the spec cannot be used; a
  // cache is refused with such a line.
  std::string environment_error, spec_error;
  const std::string& error() const {
    return environment_error.empty() ? spec_error : environment_error;
  }
};

// Reads OSCAR_KV, OSCAR_LOG, OSCAR_COPIES, OSCAR_PARTIAL. What is wrong lands in Config's errors;
// what is right is in force all the same.
void configure_from_environment();

// Replaces the spec and keeps the rest. Throws Error and changes nothing when the spec does not fit
// or the environment was wrong.
void configure(const std::string& kv_spec);

std::shared_ptr<const Config> current_config();

}  // namespace oscar::ggml_plugin
