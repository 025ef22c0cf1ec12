// A small artefact with every part, and its file in a form that tests can spoil.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "format/artefact.h"
#include "format/safetensors.h"

namespace oscar {

inline constexpr int kTestLayers = 3, kTestQHeads = 4, kTestKvHeads = 2, kTestDim = 32;

// [num_heads][dim][dim] orthogonal to single precision, not symmetric; the same for the same seed.
std::vector<float> random_rotations(int num_heads, int dim, std::uint64_t seed);

// Transforms alone: k_transform [num_kv_heads][dim_k][dim_k], v_transform alike.
ArtefactLayer plain_layer(int layer, int num_kv_heads, int dim_k, int dim_v,
                          std::vector<float> k_transform, std::vector<float> v_transform);

// oscar-plus, three layers, two KV heads, smoothed keys with their inverse in layer 1, all optional
// tensors present.
Artefact test_artefact();

// A file's tensors as bytes of their own.
struct EditableFile {
  explicit EditableFile(const Artefact& artefact);  // as save_artefact writes it
  explicit EditableFile(const std::string& bytes);

  std::string bytes() const;  // the file
  Artefact parse() const;     // of bytes(), under the name "a.safetensors"
  std::vector<float> floats(const std::string& tensor) const;
  void set_floats(const std::string& tensor, const std::vector<float>& values);
  void set_value(const std::string& tensor, std::size_t index, float value);
  void rename(const std::string& from, const std::string& to);
  void swap(const std::string& a, const std::string& b);

  struct Tensor {
    DType dtype = DType::kF32;
    std::vector<std::uint64_t> shape;
    std::vector<std::uint8_t> bytes;
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

}  // namespace oscar
