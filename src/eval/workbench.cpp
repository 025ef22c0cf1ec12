#include "eval/workbench.h"

#include <filesystem>
#include <utility>

#include "base/error.h"
#include "calibrate/methods.h"

namespace oscar::eval {
namespace {

constexpr std::size_t kErrorBytes = 1024;

// The artefact (of a file; otherwise made here) is of this model, and the options suit it. A method
// that waits for calibration is judged by a data-free one of the same shapes; only whether it has
// an eigenbasis, clips and subtracts a mean shows later.
void check_fits(const KvChoice& kv, Artefact artefact, const ModelFingerprint& model) {
  KvSpec spec = kv.spec;
  if (spec.kind == KvSpec::Kind::kFile) {
    check_fingerprint(artefact, model);
  } else {
    const calibrate::LayerShape shape = {model.num_q_heads, model.num_kv_heads, model.head_dim_k,
                                         model.head_dim_v};
    artefact = calibrate::make_uncalibrated(spec.method, model, {{0, shape}});
    if (needs_calibration(kv)) spec.no_eigenbasis = spec.no_clip = spec.no_mean = false;
  }
  calibrate::apply_kv_spec(spec, &artefact);
}

}  // namespace

Workbench::Workbench(Host* host, const std::string& model_path, int num_threads)
    : host_(host), file_(open_model_file(model_path)), num_threads_(num_threads) {}

Model& Workbench::model(Placement placement) {
  std::unique_ptr<Model>& model = models_[static_cast<int>(placement)];
  if (!model) model = std::make_unique<Model>(host_, file_, placement);
  return *model;
}

void Workbench::check(const KvChoice& kv) const {
  if (kv.spec.kind == KvSpec::Kind::kHostType) return;
  check_packed_cache_supports(file_);
  // The artefact's own defects name its file already.
  Artefact artefact;
  if (kv.spec.kind == KvSpec::Kind::kFile) artefact = load_artefact(kv.spec.file);
  try {
    check_fits(kv, std::move(artefact), file_.fingerprint);
  } catch (const Error& error) {
    throw Error(error.code(), "--kv " + kv.label + ": " + error.what());
  }
}

void Workbench::check_context(std::int64_t num_tokens) const {
  if (file_.context_length > 0 && num_tokens > file_.context_length) {
    throw Error(ErrorCode::kInvalidArgument,
                file_.path + ": a context of " + std::to_string(num_tokens) +
                    " tokens is longer than the model's " + std::to_string(file_.context_length));
  }
}

ContextOptions Workbench::context_options(const OpenOptions& options) const {
  ContextOptions result;
  result.num_tokens = options.num_tokens;
  result.max_outputs = options.max_outputs;
  result.num_sequences = options.num_sequences;
  result.num_streams = options.num_streams;
  result.eval_callback = options.eval_callback;
  result.eval_callback_data = options.eval_callback_data;
  result.num_threads = num_threads_;
  return result;
}

std::unique_ptr<Context> Workbench::open(const KvChoice& kv, std::int64_t num_tokens,
                                         std::int64_t max_outputs) {
  OpenOptions options;
  options.num_tokens = num_tokens;
  options.max_outputs = max_outputs;
  return open(kv, options);
}

std::unique_ptr<Context> Workbench::open(const KvChoice& kv, const OpenOptions& options) {
  if (kv.spec.kind != KvSpec::Kind::kHostType) return open_plugin(kv.plugin_spec, options);
  ContextOptions context = context_options(options);
  context.kv_type = host_type(kv.spec.host_type);
  context.flash_attention = kv.flash_attention;
  return std::make_unique<Context>(&model(Placement::kHost), context);
}

std::unique_ptr<Context> Workbench::open_exact(std::int64_t num_tokens) {
  OpenOptions options;
  options.num_tokens = num_tokens;
  return open_plugin("", options);
}

std::unique_ptr<Context> Workbench::open_plugin(const std::string& spec,
                                                const OpenOptions& options) {
  char error[kErrorBytes] = {};
  if (host_->plugin().configure(spec.c_str(), error, sizeof error) != 0) {
    throw Error(ErrorCode::kInvalidArgument, error);
  }
  return std::make_unique<Context>(&model(Placement::kPlugin), context_options(options));
}

KvUse Workbench::use(const Context& context, const KvChoice& kv) const {
  if (kv.spec.kind == KvSpec::Kind::kHostType) {
    const ggml_type type = host_type(kv.spec.host_type);
    const double bits =
        8.0 * static_cast<double>(ggml_type_size(type)) / static_cast<double>(ggml_blck_size(type));
    return {kv.spec.host_type, bits, bits, context.host_kv_bytes(), 0, 0, 0};
  }
  ggml_plugin::Report report;
  if (host_->plugin().report(&report) != 0) {
    throw Error(ErrorCode::kUnsupported,
                "--kv " + kv.label +
                    ": the plugin reports no cache; the model's keys and values did not go to it");
  }
  return {report.method,
          report.bits_per_value,
          report.code_bits,
          report.kv_bytes_used,
          report.kv_bytes_allocated,
          report.num_attended,
          report.num_read_elsewhere};
}

ggml_type host_type(const std::string& name) {
  if (name == "f16") return GGML_TYPE_F16;
  if (name == "q8_0") return GGML_TYPE_Q8_0;
  if (name == "q4_0") return GGML_TYPE_Q4_0;
  throw Error(ErrorCode::kInvalidArgument,
              "--kv " + name + ": llama.cpp's types are f16, q8_0, q4_0");
}

KvChoice choose_kv(const std::string& text) {
  KvChoice kv;
  kv.label = text;
  kv.spec = parse_kv_spec(text);
  kv.plugin_spec = text;
  if (kv.spec.kind == KvSpec::Kind::kFile && !std::filesystem::exists(kv.spec.file)) {
    throw Error(ErrorCode::kNotFound,
                "--kv " + text + ": '" + kv.spec.file +
                    "' is no file and no method; methods are f16, q8_0, q4_0, " + method_names());
  }
  return kv;
}

bool needs_calibration(const KvChoice& kv) {
  return kv.spec.kind == KvSpec::Kind::kMethod && calibrate::needs_statistics(kv.spec.method);
}

void use_artefact(KvChoice* kv, const std::string& artefact_path) {
  // The options stay as they were given, after the method's name.
  const std::size_t options = kv->label.find(':');
  kv->plugin_spec = artefact_path;
  if (options != std::string::npos) kv->plugin_spec += kv->label.substr(options);
  kv->spec = parse_kv_spec(kv->plugin_spec);
}

}  // namespace oscar::eval
