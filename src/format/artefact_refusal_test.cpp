// Artefacts that must not load, each refused by the first real reason.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/test_files.h"
#include "format/artefact.h"
#include "format/test_artefact.h"

namespace oscar {
namespace {

using Parts = std::vector<std::string>;
constexpr int kMatrix = kTestDim * kTestDim;

class ArtefactRefusal : public ::testing::Test {
 protected:
  void refused(const Parts& parts, ErrorCode code = ErrorCode::kCorrupt) const {
    Parts all = parts;
    all.push_back("'a.safetensors'");
    expect_error(code, all, [&] { file_.parse(); });
  }
  void metadata_refused(const std::string& key, const std::string& value, const Parts& parts,
                        ErrorCode code = ErrorCode::kCorrupt) {
    const std::string before = file_.metadata.at(key);
    file_.metadata[key] = value;
    refused(parts, code);
    file_.metadata[key] = before;
  }
  // The text of a metadata entry with one part replaced.
  std::string changed(const std::string& key, const std::string& from, const std::string& to) {
    std::string text = file_.metadata.at(key);
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from << " is not in " << text;
    return text.replace(at, from.size(), to);
  }

  EditableFile file_{test_artefact()};
};

TEST_F(ArtefactRefusal, TheFileItselfIsFine) { EXPECT_NO_THROW(file_.parse()); }

TEST_F(ArtefactRefusal, OtherFormats) {
  metadata_refused("format", "pt", {"'pt'", "'oscar-artefact'", "no calibration artefact"});
  file_.metadata.erase("format");
  refused({"no metadata 'format'", "no calibration artefact"});
}

TEST_F(ArtefactRefusal, UnknownVersions) {
  metadata_refused("format_version", "99", {"'99'", "reads version 1"}, ErrorCode::kUnsupported);
  metadata_refused("format_version", "0", {"'0'", "reads version 1"}, ErrorCode::kUnsupported);
  metadata_refused("format_version", "1.0", {"'1.0'"}, ErrorCode::kUnsupported);
  metadata_refused("format_version", "", {"''"}, ErrorCode::kUnsupported);
  // The version is judged before what a later version may have changed.
  file_.metadata["basis"] = "new";
  metadata_refused("format_version", "2", {"'2'", "reads version 1"}, ErrorCode::kUnsupported);
}

TEST_F(ArtefactRefusal, OtherBasisOrConvention) {
  metadata_refused("basis", "before_rope", {"'basis'", "'before_rope'", "'after_rope'"},
                   ErrorCode::kUnsupported);
  metadata_refused("convention", "rotated = R * raw", {"'convention'", "'rotated = raw * R'"},
                   ErrorCode::kUnsupported);
  file_.metadata.erase("basis");
  refused({"'basis' is missing"});
}

TEST_F(ArtefactRefusal, BitsOfLayers) {
  file_.metadata["layer_bits"] = "";
  const auto bits_refused = [&](const char* bits, const Parts& parts,
                                ErrorCode code = ErrorCode::kCorrupt) {
    metadata_refused("layer_bits", bits, parts, code);
  };
  bits_refused("{}", {"'layer_bits'", "a JSON array"});
  bits_refused("[[2,2],[2,2]]", {"lists 2 layers", "num_layers, 3"});
  bits_refused("[[2,2],[2],[2,2]]", {"layer_bits of layer 1", "[bits of keys, bits of values]"});
  bits_refused("[[2,2],[2,1],[2,2]]", {"layer_bits of layer 1", "2 to 16"});
  bits_refused("[[2,2],[5,2],[2,2]]", {"layer 1 keys", "5"}, ErrorCode::kUnsupported);
  bits_refused("[[2,2],[2.5,2],[2,2]]", {"layer_bits of layer 1", "whole number"});
  file_.metadata["layer_bits"] = "[[2,3],[4,2],[3,3]]";
  EXPECT_NO_THROW(file_.parse());
  file_.metadata["bit_reversal"] = "no";
  refused({"'bit_reversal'", "'no'", "false, true"});
}

TEST_F(ArtefactRefusal, LossesOfLayers) {
  EditableFile::Tensor losses{DType::kF32, {kTestLayers, 2, 3}, {}};
  losses.bytes.resize(kTestLayers * 6 * sizeof(float));
  file_.tensors["bit_losses"] = losses;
  EXPECT_NO_THROW(file_.parse());
  file_.set_value("bit_losses", 7, -0.5f);
  refused({"layer 1", "loss -0.5"});
  file_.set_value("bit_losses", 7, NAN);
  refused({"layer 1", "right: finite"});
  file_.tensors["bit_losses"].shape = {kTestLayers, 3, 2};
  refused({"'bit_losses'", "shape"});
}

TEST_F(ArtefactRefusal, UnknownNames) {
  metadata_refused("method", "oscar2", {"'oscar2'", "naive, quarot, oscar, oscar-plus"},
                   ErrorCode::kUnsupported);
  metadata_refused("hadamard", "yes", {"'hadamard'", "'yes'", "false, true"});
  file_.metadata["extra"] = "1";
  refused({"'extra'"});
}

TEST_F(ArtefactRefusal, ModelFields) {
  metadata_refused("model", "[]", {"'model'", "a JSON object"});
  metadata_refused("model", "{", {"'model'", "not JSON"});
  metadata_refused("model", changed("model", "\"num_layers\":3", "\"num_layers\":-3"),
                   {"num_layers is '-3'", "from 1 to"});
  metadata_refused("model", changed("model", "\"num_layers\":3", "\"num_layers\":3.5"),
                   {"num_layers is '3.5'"});
  metadata_refused("model", changed("model", "\"num_layers\":3", "\"num_layers\":2147483648"),
                   {"num_layers is '2147483648'"});
  metadata_refused("model", changed("model", "\"num_layers\":3", "\"num_layers\":4000"),
                   {"num_layers is 4000", "tensors"});
  metadata_refused("model", changed("model", "\"num_layers\":3", "\"num_layers\":3,\"x\":1"),
                   {"unknown 'x'"});
  metadata_refused("model",
                   changed("model", "\"num_layers\":3", "\"num_layers\":3,\"num_layers\":3"),
                   {"'num_layers' twice"});
  metadata_refused("model", changed("model", "\"num_layers\":3,", ""), {"no 'num_layers'"});
  metadata_refused("model", changed("model", "\"llama\"", "7"), {"architecture is '7'", "a text"});
  metadata_refused("model", changed("model", "\"head_dim_k\":32", "\"head_dim_k\":40"),
                   {"k_quant", "head size 40", "multiples of 16"}, ErrorCode::kUnsupported);
  metadata_refused("model", changed("model", "\"num_q_heads\":4", "\"num_q_heads\":5"),
                   {"num_q_heads 5", "num_kv_heads 2"});
}

TEST_F(ArtefactRefusal, QuantFields) {
  metadata_refused("k_quant", changed("k_quant", "\"bits\":3", "\"bits\":5"),
                   {"k_quant", "bits 5", "2, 3, 4, 16"}, ErrorCode::kUnsupported);
  metadata_refused("v_quant", changed("v_quant", "128", "40"), {"v_quant", "group_size 40"});
  metadata_refused("v_quant", changed("v_quant", "affine", "lattice"),
                   {"codebook", "'lattice'", "affine, symmetric, trellis"});
  metadata_refused("k_quant", changed("k_quant", "symmetric", "trellis"),
                   {"k_quant", "trellis codes have 2 bits", "3"}, ErrorCode::kUnsupported);
  metadata_refused("v_quant", changed("v_quant", "least_squares", "best"),
                   {"scale_fit", "'best'", "plain, unbiased, least_squares"});
}

TEST_F(ArtefactRefusal, WrongNumberOfKvHeads) {
  metadata_refused("model", changed("model", "\"num_kv_heads\":2", "\"num_kv_heads\":4"),
                   {"layers.0.", "[2, 32", "[4, 32", "num_kv_heads 4"});
  file_.tensors.at("layers.1.k_transform").shape = {1, kTestDim, kTestDim};
  file_.tensors.at("layers.1.k_transform").bytes.resize(kMatrix * sizeof(float));
  refused({"'layers.1.k_transform'", "[1, 32, 32]", "[2, 32, 32]", "num_kv_heads 2"});
}

TEST_F(ArtefactRefusal, WrongShapes) {
  const auto reshaped = [&](const std::string& tensor, std::vector<std::uint64_t> shape,
                            const Parts& parts) {
    auto& entry = file_.tensors.at(tensor);
    const auto before = entry.shape;
    entry.shape = std::move(shape);
    refused(parts);
    entry.shape = before;
  };
  reshaped("layers.1.v_transform", {2, 16, 64},
           {"'layers.1.v_transform'", "[2, 16, 64]", "[2, 32, 32]"});
  reshaped("layers.1.k_mean", {64}, {"'layers.1.k_mean'", "[64]", "[2, 32]"});
  reshaped("layers.1.k_clip.2", {2, 1}, {"'layers.1.k_clip.2'", "[2, 1]", "[2]"});
  reshaped("layers.2.k_probe", {32, 2}, {"'layers.2.k_probe'", "[32, 2]", "[2, 32]"});
  reshaped("ropes.0.inv_freq", {4, 4}, {"'ropes.0.inv_freq'", "[4, 4]", "[4]"});
  reshaped("errors", {2, 3}, {"'errors'", "[2, 3]", "[3, 2]"});
}

TEST_F(ArtefactRefusal, WrongElementType) {
  auto& tensor = file_.tensors.at("layers.1.k_mean");
  tensor.dtype = DType::kI32;
  refused({"'layers.1.k_mean'", "I32", "F32 or BF16"});
}

TEST_F(ArtefactRefusal, MissingTensorsAndLayers) {
  for (const char* tensor :
       {"layers.1.k_transform", "layers.2.v_probe", "ropes.1.inv_freq", "errors"}) {
    EditableFile file = file_;
    file.tensors.erase(tensor);
    expect_error(ErrorCode::kCorrupt, {tensor, "missing"}, [&] { file.parse(); });
  }
  std::erase_if(file_.tensors, [](const auto& t) { return t.first.starts_with("layers.1."); });
  refused({"'layers.1.", "missing"});
}

TEST_F(ArtefactRefusal, DoubledLayers) {
  metadata_refused("layers", "[0,1,1]", {"has 1 after 1", "ascending, each layer once"});
  metadata_refused("layers", "[0,2,1]", {"has 1 after 2", "ascending"});
  metadata_refused("layers", "[0,1,2,2]", {"lists 4 layers", "3"});
  metadata_refused("layers", "[0,1]", {"lists 2 layers", "3"});
  metadata_refused("layer_ropes", "[0,0]", {"'layer_ropes' lists 2 layers", "3"});
  metadata_refused("layer_ropes", "[0,0,2]", {"rope of layer 2", "'2'", "-1 to 1"});
  // 2^64 − 1, which is −1 in 64 bits.
  metadata_refused("layer_ropes", "[0,0,18446744073709551615]",
                   {"rope of layer 2", "'18446744073709551615'", "-1 to 1"});
}

TEST_F(ArtefactRefusal, RenumberedLayers) {
  for (const auto& [name, tensor] : std::map(file_.tensors)) {
    if (name.starts_with("layers.2.")) file_.rename(name, "layers.3." + name.substr(9));
  }
  refused({"'layers.2.", "missing"});
  // Listed under the new number, the matrices are those of another layer.
  metadata_refused("layers", "[0,1,3]", {"layer 3 head 0", "k_probe", "of another layer"});
}

TEST_F(ArtefactRefusal, TwoLayersExchanged) {
  for (const auto& [name, tensor] : std::map(file_.tensors)) {
    if (name.starts_with("layers.0.")) file_.swap(name, "layers.2." + name.substr(9));
  }
  refused({"layer 0 head 0", "k_probe", "of another layer"});
}

TEST_F(ArtefactRefusal, TensorsThatNobodyAskedFor) {
  auto copy = file_.tensors.at("layers.1.k_mean");
  file_.tensors["layers.3.k_mean"] = copy;
  refused({"'layers.3.k_mean' is unknown", "layers 0 to 2"});
  file_.rename("layers.3.k_mean", "layers.01.k_mean");
  refused({"'layers.01.k_mean' is unknown"});
}

TEST_F(ArtefactRefusal, KeysForValues) {
  file_.swap("layers.0.k_transform", "layers.0.v_transform");
  refused({"layer 0 head 0", "k_transform", "side"});
}

TEST_F(ArtefactRefusal, HeadsExchanged) {
  std::vector<float> values = file_.floats("layers.0.v_transform");
  std::swap_ranges(values.begin(), values.begin() + kMatrix, values.begin() + kMatrix);
  file_.set_floats("layers.0.v_transform", values);
  refused({"layer 0 head 0", "v_transform", "head or side"});
}

// As orthogonal as the right one.
TEST_F(ArtefactRefusal, Transposed) {
  const std::vector<float> values = file_.floats("layers.2.k_transform");
  for (int i = 0; i < kTestDim; ++i) {
    for (int j = 0; j < kTestDim; ++j) {
      file_.set_value("layers.2.k_transform", kMatrix + j * kTestDim + i,
                      values[kMatrix + i * kTestDim + j]);
    }
  }
  refused({"layer 2 head 1", "k_transform", "transposed"});
}

TEST_F(ArtefactRefusal, OneDiagonalEntryOff) {
  for (const std::size_t head : {0, 1}) {
    EditableFile file = file_;
    std::vector<float> identity(2 * kMatrix);
    for (int i = 0; i < kTestDim; ++i) {
      identity[i * (kTestDim + 1)] = identity[kMatrix + i * (kTestDim + 1)] = 1;
    }
    identity[head * kMatrix + 5 * (kTestDim + 1)] = 1.01f;
    file.set_floats("layers.0.v_transform", identity);
    expect_error(ErrorCode::kCorrupt,
                 {"layer 0 head " + std::to_string(head), "v_transform is not orthogonal", "0.0201",
                  "row 5, column 5", "at most 0.005"},
                 [&] { file.parse(); });
  }
}

TEST_F(ArtefactRefusal, TwoEqualColumns) {
  const std::vector<float> values = file_.floats("layers.0.k_transform");
  for (int i = 0; i < kTestDim; ++i) {
    file_.set_value("layers.0.k_transform", i * kTestDim + 3, values[i * kTestDim + 4]);
  }
  refused({"layer 0 head 0", "k_transform is not orthogonal", "at most 0.005"});
}

// The least that two equal columns can show is √2/d; a Hadamard matrix of 256 shows 2/256.
TEST_F(ArtefactRefusal, TwoEqualColumnsOfTheLargestHead) {
  constexpr int kDim = 256;
  Artefact artefact = test_artefact();
  artefact.model = {"llama", 1, 1, 1, kDim, kDim, ""};
  std::vector<float> hadamard(kDim * kDim);
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) {
      hadamard[i * kDim + j] =
          __builtin_parity(static_cast<unsigned>(i & j)) != 0 ? -1 / 16.0f : 1 / 16.0f;
    }
  }
  artefact.layers = {plain_layer(0, 1, kDim, kDim, hadamard, hadamard)};
  file_ = EditableFile(artefact);
  EXPECT_NO_THROW(file_.parse());
  for (int i = 0; i < kDim; ++i) {
    file_.set_value("layers.0.k_transform", i * kDim + 7, hadamard[i * kDim + 200]);
  }
  refused({"layer 0 head 0", "k_transform is not orthogonal"});
}

TEST_F(ArtefactRefusal, InverseThatDoesNotFit) {
  file_.set_value("layers.1.k_transform_inverse_transposed", 40, 9);
  refused({"layer 1 head 0", "k_transform does not fit its inverse"});
  file_ = EditableFile(test_artefact());
  file_.set_value("layers.1.v_inverse", kMatrix, 9);
  refused({"layer 1 head 1", "v_transform does not fit its inverse"});
  // Without its inverse a smoothed transform is no rotation.
  file_ = EditableFile(test_artefact());
  file_.tensors.erase("layers.1.k_transform_inverse_transposed");
  refused({"layer 1 head 0", "k_transform is not orthogonal"});
}

TEST_F(ArtefactRefusal, NumbersThatAreNone) {
  for (const auto& [tensor, data] : EditableFile(file_).tensors) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      EditableFile file = file_;
      file.set_value(tensor, data.bytes.size() / sizeof(float) - 1, bad);
      SCOPED_TRACE(tensor);
      const bool probe = tensor.ends_with("_probe");
      expect_error(ErrorCode::kCorrupt,
                   {probe             ? "stored " + std::string(std::isnan(bad) ? "nan"
                                                                : bad > 0       ? "inf"
                                                                                : "-inf")
                    : std::isnan(bad) ? "nan"
                                      : "inf"},
                   [&] { file.parse(); });
    }
  }
  file_.set_value("layers.1.k_transform", kMatrix + 3, std::nanf(""));
  refused({"layer 1 head 1", "k_transform", "nan", "value 3", "finite"});
  file_.set_value("layers.1.k_transform", kMatrix + 3, 0.0f);
  file_.set_value("layers.1.k_mean", kTestDim + 5, 65600.0f);
  refused({"layer 1 head 1", "k_mean", "65600", "value 5", "65504"});
}

// Finite, but products overflow.
TEST_F(ArtefactRefusal, HugeValues) {
  file_.set_floats("layers.0.k_transform", std::vector<float>(2 * kMatrix, 3e38f));
  refused({"layer 0 head 0", "k_transform is not orthogonal"});
}

TEST_F(ArtefactRefusal, ClipRatios) {
  for (const float bad : {0.0f, -0.5f, 1.001f}) {
    EditableFile file = file_;
    file.set_value("layers.1.v_clip.3", 1, bad);
    expect_error(ErrorCode::kCorrupt, {"layer 1 head 1", "v_clip.3", "above 0, at most 1"},
                 [&] { file.parse(); });
  }
}

TEST_F(ArtefactRefusal, Spectra) {
  file_.set_value("layers.1.k_spectrum", kTestDim + 2, 1e6f);
  refused({"layer 1 head 1", "k_spectrum rises", "value 2", "descending"});
}

TEST_F(ArtefactRefusal, Ropes) {
  metadata_refused("ropes", changed("ropes", "interleaved", "spiral"),
                   {"'spiral'", "half_split, interleaved"});
  metadata_refused("ropes", changed("ropes", "\"magnitude\":1.0", "\"magnitude\":0.0"),
                   {"rope 1", "magnitude 0", "above 0"});
  metadata_refused("ropes", changed("ropes", "\"magnitude\":1.0", "\"magnitude\":1e300"),
                   {"rope 1", "magnitude inf"});
  metadata_refused("ropes", changed("ropes", "\"magnitude\":1.0", "\"magnitude\":\"1\""),
                   {"magnitude", "a number"});
  metadata_refused("ropes", "[1]", {"a rope is '1'"});
  metadata_refused("ropes", "[]", {"rope of layer 1", "'0'"});
  file_.set_value("ropes.0.inv_freq", 2, -1);
  refused({"'ropes.0.inv_freq'", "-1", "pair 2", "not negative"});
  file_ = EditableFile(test_artefact());
  file_.tensors.at("ropes.1.inv_freq").shape = {kTestDim};
  file_.set_floats("ropes.1.inv_freq", std::vector<float>(kTestDim, 0.5f));
  refused({"layer 2", "rope 1 of 64 channels", "head size 32"});
}

TEST_F(ArtefactRefusal, Errors) {
  file_.set_value("errors", 2, -1);
  refused({"layer 1", "error -1", "not negative"});
}

TEST_F(ArtefactRefusal, InfoThatIsNoText) {
  metadata_refused("info", "{\"tokens\":8192}", {"info 'tokens'", "'8192'", "a text"});
  metadata_refused("info", std::string(200000, '['), {"'info'", "nests deeper than"});
  metadata_refused("info", "{\"a\":\"" + std::string(1 << 20, 'x') + "\"}", {"'info'", "at most"});
}

// A file may not ask for more memory than it has bytes by sharing matrices between thousands of
// heads.
TEST_F(ArtefactRefusal, SharedMatricesAreBounded) {
  constexpr int kHeads = 4096, kDim = 256;
  EditableFile file = file_;
  file.metadata["model"] = changed("model", "\"num_kv_heads\":2", "\"num_kv_heads\":4096");
  file.metadata["model"] =
      "{\"architecture\":\"x\",\"head_dim_k\":256,\"head_dim_v\":256,\"num_kv_heads\":4096,"
      "\"num_layers\":1,\"num_q_heads\":4096,\"weights_hash\":\"\"}";
  file.metadata["layers"] = "[0]";
  file.metadata["layer_ropes"] = "[-1]";
  file.metadata["ropes"] = "[]";
  file.tensors.clear();
  for (const std::string side : {"k", "v"}) {
    file.tensors["layers.0." + side + "_probe"].shape = {kHeads, kDim};
    file.set_floats("layers.0." + side + "_probe", std::vector<float>(kHeads * kDim));
    file.tensors["layers.0." + side + "_transform"].shape = {kDim, kDim};
    file.set_floats("layers.0." + side + "_transform", std::vector<float>(kDim * kDim));
  }
  expect_error(ErrorCode::kCorrupt, {"layers.0.", "shared by 4096 heads"}, [&] { file.parse(); });
}

// Whatever single byte of the header is changed, the file loads or is refused in one line; cut
// anywhere, it is refused.
TEST_F(ArtefactRefusal, SpoiltHeadersAndCutFiles) {
  const std::string good = file_.bytes();
  std::uint64_t header_bytes;
  std::memcpy(&header_bytes, good.data(), sizeof header_bytes);
  const auto parse = [](const std::string& bytes) {
    parse_artefact(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), "a");
  };
  int num_refused = 0;
  for (std::size_t at = 0; at < 8 + header_bytes; ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    try {
      parse(bad);
    } catch (const Error& error) {
      ++num_refused;
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(num_refused, static_cast<int>(header_bytes / 2));
  for (int tenth = 0; tenth < 10; ++tenth) {
    const std::string cut = good.substr(0, good.size() * tenth / 10);
    expect_error(ErrorCode::kCorrupt, {"'a'"}, [&] { parse(cut); });
  }
}

}  // namespace
}  // namespace oscar
