#include "eval/non_finite_trace.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"

namespace oscar::eval {
namespace {

// llama.cpp names a layer's output so, the layer's index behind it.
constexpr const char* kLayerOutput = "l_out-";

struct Tracer {
  std::int64_t first_token = 0;  // of the step that runs
  std::string found;             // "layer 3, token 17"
  std::int64_t num_seen = 0;

  // ggml asks which tensors to show, and then shows them.
  static bool on_tensor(ggml_tensor* tensor, bool ask, void* self) {
    Tracer& tracer = *static_cast<Tracer*>(self);
    const bool is_layer = std::strncmp(tensor->name, kLayerOutput, std::strlen(kLayerOutput)) == 0;
    if (ask) return is_layer && tracer.found.empty();
    if (is_layer && tensor->type == GGML_TYPE_F32 && ggml_is_contiguous(tensor)) {
      tracer.look(tensor);
    }
    return true;
  }

  void look(const ggml_tensor* tensor) {
    ++num_seen;
    std::vector<float> values(static_cast<std::size_t>(ggml_nelements(tensor)));
    ggml_backend_tensor_get(tensor, values.data(), 0, ggml_nbytes(tensor));
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [](float value) { return !std::isfinite(value); });
    if (bad == values.end() || !found.empty()) return;
    found = "layer " + std::string(tensor->name + std::strlen(kLayerOutput)) + ", token " +
            std::to_string(first_token + (bad - values.begin()) / tensor->ne[0]);
  }
};

}  // namespace

std::string trace_non_finite(Workbench* workbench, const KvChoice& kv,
                             std::span<const llama_token> tokens) {
  Tracer tracer;
  OpenOptions options;
  options.num_tokens = static_cast<std::int64_t>(tokens.size());
  options.max_outputs = kBatchTokens;
  options.eval_callback = &Tracer::on_tensor;
  options.eval_callback_data = &tracer;
  try {
    const std::unique_ptr<Context> context = workbench->open(kv, options);
    for (std::size_t start = 0; start < tokens.size() && tracer.found.empty();) {
      const std::size_t count =
          std::min<std::size_t>(static_cast<std::size_t>(kBatchTokens), tokens.size() - start);
      tracer.first_token = static_cast<std::int64_t>(start);
      // All are outputs, or the last layer would drop the others.
      context->decode(tokens.subspan(start, count), static_cast<std::int64_t>(count));
      start += count;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
    return "";
  }
  if (!tracer.found.empty()) return "NaN or Inf first in the output of " + tracer.found;
  if (tracer.num_seen == 0) return "";
  return "the outputs of all layers are finite, so it arises in the model's last norm or output "
         "weights";
}

}  // namespace oscar::eval
