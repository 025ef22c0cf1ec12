#include "format/test_artefact.h"

#include <cmath>
#include <random>
#include <utility>

#include "format/artefact_hash.h"

namespace oscar {

std::vector<float> random_rotations(int num_heads, int dim, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> out;
  for (int head = 0; head < num_heads; ++head) {
    std::vector<std::vector<double>> rows;
    while (static_cast<int>(rows.size()) < dim) {  // Gram–Schmidt, twice for accuracy
      std::vector<double> row(dim);
      for (double& x : row) x = normal(random);
      for (int pass = 0; pass < 2; ++pass) {
        for (const auto& other : rows) {
          double dot = 0;
          for (int i = 0; i < dim; ++i) dot += row[i] * other[i];
          for (int i = 0; i < dim; ++i) row[i] -= dot * other[i];
        }
      }
      double norm = 0;
      for (const double x : row) norm += x * x;
      for (double& x : row) x /= std::sqrt(norm);
      rows.push_back(row);
    }
    for (const auto& row : rows) {
      for (const double x : row) out.push_back(static_cast<float>(x));
    }
  }
  return out;
}

ArtefactLayer plain_layer(int layer, int num_kv_heads, int dim_k, int dim_v,
                          std::vector<float> k_transform, std::vector<float> v_transform) {
  ArtefactLayer out;
  out.layer = layer;
  out.num_kv_heads = num_kv_heads;
  out.head_dim_k = dim_k;
  out.head_dim_v = dim_v;
  out.k_transform = std::move(k_transform);
  out.v_transform = std::move(v_transform);
  return out;
}

Artefact test_artefact() {
  Artefact artefact;
  artefact.method = Method::kOscarPlus;
  artefact.model = {"llama",
                    kTestLayers,
                    kTestQHeads,
                    kTestKvHeads,
                    kTestDim,
                    kTestDim,
                    "0123456789abcdef0123456789abcdef"};
  artefact.k_quant = {3, 32, Codebook::kSymmetric, ScaleFit::kUnbiased};
  artefact.v_quant = {2, 128, Codebook::kAffine, ScaleFit::kLeastSquares};
  artefact.key_smoothing = true;
  artefact.ropes = {{RopePairing::kInterleaved, std::vector<float>(kTestDim / 2, 0.1f), 1.2f},
                    {RopePairing::kHalfSplit, std::vector<float>(kTestDim / 4, 0.3f), 1.0f}};
  artefact.info = {{"tokens", "8192"}, {"text", "a \"quoted\" text, ü"}, {"", ""}};
  std::mt19937_64 random(7);
  std::uniform_real_distribution<float> uniform(0.5f, 1.0f);
  const auto rows = [&](int count) {
    std::vector<float> values(count);
    for (float& value : values) value = uniform(random);
    return values;
  };
  for (int i = 0; i < kTestLayers; ++i) {
    ArtefactLayer layer = plain_layer(i, kTestKvHeads, kTestDim, kTestDim,
                                      random_rotations(kTestKvHeads, kTestDim, 10 + i),
                                      random_rotations(kTestKvHeads, kTestDim, 20 + i));
    layer.rope = i - 1;
    if (i == 1) {
      layer.k_transform_inverse_transposed = layer.k_transform;
      for (std::size_t at = 0; at < layer.k_transform.size(); ++at) {
        const float s = 1.0f + static_cast<float>(at / kTestDim % 5);  // per row
        layer.k_transform[at] /= s;
        layer.k_transform_inverse_transposed[at] *= s;
      }
      layer.v_inverse = layer.v_transform;
      for (int h = 0; h < kTestKvHeads; ++h) {
        for (int r = 0; r < kTestDim; ++r) {
          for (int c = 0; c < kTestDim; ++c) {
            const int base = h * kTestDim * kTestDim;
            layer.v_inverse[base + c * kTestDim + r] = layer.v_transform[base + r * kTestDim + c];
          }
        }
      }
      layer.k_mean = rows(kTestKvHeads * kTestDim);
      layer.v_mean = rows(kTestKvHeads * kTestDim);
      for (int bits = 0; bits < kNumClipBits; ++bits) {
        layer.k_clip[bits] = rows(kTestKvHeads);
        layer.v_clip[bits] = rows(kTestKvHeads);
      }
      layer.k_clip[0][1] = 1.0f;
      for (int v = 0; v < kTestKvHeads * kTestDim; ++v) {
        layer.k_spectrum.push_back(static_cast<float>(kTestDim - v % kTestDim));
        layer.v_spectrum.push_back(0.5f);
      }
      layer.k_error = 0.01f;
    }
    artefact.layers.push_back(layer);
  }
  return artefact;
}

EditableFile::EditableFile(const std::string& bytes) {
  const Safetensors file = parse_safetensors(
      {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, "test file");
  metadata = file.metadata;
  metadata.erase(kContentHash);  // every edit would be refused for it
  for (const auto& [name, view] : file.tensors) {
    tensors[name] = {view.dtype, view.shape, {view.bytes.begin(), view.bytes.end()}};
  }
}

EditableFile::EditableFile(const Artefact& artefact)
    : EditableFile(serialize_artefact(artefact, "test artefact")) {}

std::string EditableFile::bytes() const {
  Safetensors file;
  file.metadata = metadata;
  for (const auto& [name, tensor] : tensors) {
    file.tensors[name] = {tensor.dtype, tensor.shape, tensor.bytes};
  }
  return serialize_safetensors(file);
}

Artefact EditableFile::parse() const {
  const std::string all = bytes();
  return parse_artefact(reinterpret_cast<const std::uint8_t*>(all.data()), all.size(),
                        "a.safetensors");
}

std::vector<float> EditableFile::floats(const std::string& tensor) const {
  const Tensor& from = tensors.at(tensor);
  std::vector<float> values(from.bytes.size() / sizeof(float));
  std::memcpy(values.data(), from.bytes.data(), from.bytes.size());
  return values;
}

void EditableFile::set_floats(const std::string& tensor, const std::vector<float>& values) {
  Tensor& to = tensors.at(tensor);
  to.bytes.resize(values.size() * sizeof(float));
  std::memcpy(to.bytes.data(), values.data(), to.bytes.size());
}

void EditableFile::set_value(const std::string& tensor, std::size_t index, float value) {
  std::memcpy(tensors.at(tensor).bytes.data() + index * sizeof value, &value, sizeof value);
}

void EditableFile::rename(const std::string& from, const std::string& to) {
  tensors[to] = tensors.at(from);
  tensors.erase(from);
}

void EditableFile::swap(const std::string& a, const std::string& b) {
  std::swap(tensors.at(a), tensors.at(b));
}

}  // namespace oscar
