#include "eval/sweep.h"

#include "base/error.h"
#include "base/text.h"
#include "format/kv_spec.h"

namespace oscar::eval {
namespace {

struct Sweep {
  SweepKind kind;
  bool keeps_base;  // the base as given is the first of the list
  std::vector<const char*> options;
};

const std::vector<Sweep>& sweeps() {
  static const std::vector<Sweep> list = {
      {{"windows", "exact tokens at the start and at the end, 0/0 to 256/1024"},
       false,
       {"sink=0,recent=0", "sink=0,recent=256", "sink=64,recent=0", "sink=16,recent=64",
        "sink=32,recent=128", "sink=64,recent=256", "sink=128,recent=512", "sink=256,recent=1024"}},
      {{"bits", "bits of keys and of values"},
       false,
       {"k2v2", "k2v3", "k2v4", "k2v16", "k3v2", "k3v3", "k4v2", "k4v4", "k16v2", "k16v16"}},
      {{"group", "channels that share a scale"}, true, {"group=16", "group=32", "group=64"}},
      {{"ablation", "each part of the method left out, or the unbiased key scale put in"},
       true,
       {"no-u", "no-p", "no-hadamard", "no-clip", "no-mean", "unbiased", "no-mean,no-clip",
        "no-hadamard,no-clip"}},
  };
  return list;
}

std::string with_options(const KvSpec& base, const std::string& options) {
  const std::size_t name = base.kind == KvSpec::Kind::kFile
                               ? base.file.size()
                               : std::string(method_name(base.method)).size();
  return base.text + (base.text.size() > name ? "," : ":") + options;
}

}  // namespace

const std::vector<SweepKind>& sweep_kinds() {
  static const std::vector<SweepKind> kinds = [] {
    std::vector<SweepKind> result;
    for (const Sweep& sweep : sweeps()) result.push_back(sweep.kind);
    return result;
  }();
  return kinds;
}

std::vector<std::string> sweep_specs(const std::string& name, const std::string& base) {
  const KvSpec spec = parse_kv_spec(base);
  std::string known;
  for (const Sweep& sweep : sweeps()) {
    known += (known.empty() ? "" : ", ") + std::string(sweep.kind.name);
    if (name != sweep.kind.name) continue;
    if (spec.kind == KvSpec::Kind::kHostType) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--kv " + in_quotes(base) +
                      " is llama.cpp's own cache, which has nothing to vary; give a method or an "
                      "artefact");
    }
    std::vector<std::string> specs;
    if (sweep.keeps_base) specs.push_back(base);
    for (const char* options : sweep.options) {
      specs.push_back(with_options(spec, options));
      parse_kv_spec(specs.back());
    }
    return specs;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "sweep " + in_quotes(name) + " is unknown; sweeps: " + known);
}

}  // namespace oscar::eval
