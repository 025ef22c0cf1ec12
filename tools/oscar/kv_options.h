// The --kv options of a command, made ready to run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support.h"

namespace oscar::tool {

// takes_all: the command knows "all"; see for_each_of_all.
void add_kv_option(CLI::App* app, std::vector<std::string>* specs, bool takes_all = true);

inline constexpr const char* kAllKvs = "all";
// Calls `add` with every method's specification and with those that are compared with them; one
// that `add` refuses as unsupported or illegal for the model is named and left out. Throws
// Error(kUnsupported) when none is left.
void for_each_of_all(const std::function<void(const std::string& spec)>& add);

// Parses and checks all of them before anything is loaded. Methods that need an artefact and were
// given none are calibrated on the built-in sample, once; the artefact is kept in the cache folder
// (${OSCAR_CACHE_DIR:-${XDG_CACHE_HOME:-~/.cache}/oscar-kv}/artefacts). That is said in one line.
std::vector<eval::KvChoice> choose_kvs(const std::vector<std::string>& specs,
                                       eval::Workbench* workbench);

// ${OSCAR_CACHE_DIR:-${XDG_CACHE_HOME:-~/.cache}/oscar-kv}
std::string cache_folder();
// Its folder of artefacts, made where it is missing.
std::string artefact_folder();

}  // namespace oscar::tool
