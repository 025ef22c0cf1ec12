#include "format/artefact_probe.h"

#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace oscar {
namespace {

std::uint64_t mix(std::uint64_t key) {
  std::uint64_t z = key + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

struct Transform {
  const std::vector<float>& matrices;  // [num_kv_heads][head_dim][head_dim]
  int head_dim;
};

Transform transform_of(const ArtefactLayer& layer, Side side) {
  if (side == Side::kKey) return {layer.k_transform, layer.head_dim_k};
  return {layer.v_transform, layer.head_dim_v};
}

// One head: outputs and, for the tolerance, the norms of the matrix's columns.
void transform_probe(const ArtefactLayer& layer, Side side, int head, std::vector<double>* outputs,
                     std::vector<double>* norms) {
  const auto [matrices, dim] = transform_of(layer, side);
  const float* matrix = matrices.data() + std::uint64_t(head) * dim * dim;
  const double entry = 1 / std::sqrt(static_cast<double>(dim));
  const std::uint64_t key =
      ((std::uint64_t(layer.layer) * 2 + std::uint64_t(side)) << 16 | std::uint64_t(head)) << 16;
  outputs->assign(dim, 0);
  norms->assign(dim, 0);
  for (int i = 0; i < dim; ++i) {
    const double x = (mix(key + std::uint64_t(i)) >> 63) != 0 ? -entry : entry;
    for (int j = 0; j < dim; ++j) {
      const double value = matrix[std::int64_t{i} * dim + j];
      (*outputs)[j] += x * value;
      (*norms)[j] += value * value;
    }
  }
  for (double& norm : *norms) norm = std::sqrt(norm);
}

}  // namespace

std::vector<float> probe_outputs(const ArtefactLayer& layer, Side side) {
  std::vector<float> all;
  std::vector<double> outputs, norms;
  for (int head = 0; head < layer.num_kv_heads; ++head) {
    transform_probe(layer, side, head, &outputs, &norms);
    for (const double value : outputs) all.push_back(static_cast<float>(value));
  }
  return all;
}

void check_probes(const ArtefactLayer& layer, Side side, const std::vector<float>& stored,
                  const std::string& name) {
  std::vector<double> outputs, norms;
  std::size_t next = 0;
  for (int head = 0; head < layer.num_kv_heads; ++head) {
    transform_probe(layer, side, head, &outputs, &norms);
    for (std::size_t j = 0; j < outputs.size(); ++j) {
      const double have = stored[next++];
      if (std::abs(have - outputs[j]) <= kMaxOrthogonalityError * norms[j]) continue;
      const std::string field = side_name(side);
      throw Error(ErrorCode::kCorrupt,
                  in_quotes(name) + ": layer " + std::to_string(layer.layer) + " head " +
                      std::to_string(head) + ": " + field + "_transform is not the matrix that " +
                      field + "_probe was made with (output " + std::to_string(j) + " is " +
                      number_text(outputs[j]) + ", stored " + number_text(have) +
                      "): it is transposed, changed, or of another layer, head or side");
    }
  }
}

}  // namespace oscar
