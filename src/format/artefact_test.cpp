#include "format/artefact.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/bf16.h"
#include "base/error.h"
#include "base/test_files.h"
#include "format/safetensors.h"
#include "format/test_artefact.h"

namespace oscar {
namespace {

void expect_equal(const Artefact& a, const Artefact& b) {
  EXPECT_EQ(a.method, b.method);
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.k_quant, b.k_quant);
  EXPECT_EQ(a.v_quant, b.v_quant);
  EXPECT_EQ(a.hadamard, b.hadamard);
  EXPECT_EQ(a.key_smoothing, b.key_smoothing);
  EXPECT_EQ(a.bit_reversal, b.bit_reversal);
  EXPECT_EQ(a.ropes, b.ropes);
  EXPECT_EQ(a.info, b.info);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const ArtefactLayer &x = a.layers[i], &y = b.layers[i];
    EXPECT_EQ(x.layer, y.layer);
    EXPECT_EQ(x.num_kv_heads, y.num_kv_heads);
    EXPECT_EQ(x.head_dim_k, y.head_dim_k);
    EXPECT_EQ(x.head_dim_v, y.head_dim_v);
    EXPECT_EQ(x.k_transform, y.k_transform);
    EXPECT_EQ(x.k_transform_inverse_transposed, y.k_transform_inverse_transposed);
    EXPECT_EQ(x.v_transform, y.v_transform);
    EXPECT_EQ(x.v_inverse, y.v_inverse);
    EXPECT_EQ(x.k_mean, y.k_mean);
    EXPECT_EQ(x.v_mean, y.v_mean);
    EXPECT_EQ(x.rope, y.rope);
    EXPECT_EQ(x.k_clip, y.k_clip);
    EXPECT_EQ(x.v_clip, y.v_clip);
    EXPECT_EQ(x.k_spectrum, y.k_spectrum);
    EXPECT_EQ(x.v_spectrum, y.v_spectrum);
    EXPECT_EQ(x.k_error, y.k_error);
    EXPECT_EQ(x.v_error, y.v_error);
    EXPECT_EQ(x.k_bits, y.k_bits);
    EXPECT_EQ(x.v_bits, y.v_bits);
    EXPECT_EQ(x.k_losses, y.k_losses);
    EXPECT_EQ(x.v_losses, y.v_losses);
  }
}

// A flipped bit anywhere is refused, the numbers that no other check covers included: means, clips,
// spectra, texts.
TEST(Artefact, EveryFlippedBitIsRefused) {
  const std::string good = serialize_artefact(test_artefact(), "test artefact");
  std::mt19937_64 random(20260);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = good;
    const std::size_t at = random() % bytes.size();
    const int bit = static_cast<int>(random() % 8);
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
    EXPECT_THROW(
        parse_artefact(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), "a"),
        Error)
        << "byte " << at << " bit " << bit;
  }
}

TEST(Artefact, ChangedNumbersAreRefusedByTheHash) {
  const std::string good = serialize_artefact(test_artefact(), "test artefact");
  Safetensors file = parse_safetensors(
      {reinterpret_cast<const std::uint8_t*>(good.data()), good.size()}, "test artefact");
  std::vector<std::uint8_t> mean(file.tensors.at("layers.1.k_mean").bytes.size(), 0);
  file.tensors.at("layers.1.k_mean").bytes = mean;
  const std::string bad = serialize_safetensors(file);
  expect_error(ErrorCode::kCorrupt,
               {"'a.safetensors'", file.metadata.at("content_hash"), "damaged"}, [&] {
                 parse_artefact(reinterpret_cast<const std::uint8_t*>(bad.data()), bad.size(),
                                "a.safetensors");
               });
}

TEST(Artefact, SaveLoadSaveIsTheSame) {
  const TestFolder folder;
  const Artefact artefact = test_artefact();
  save_artefact(artefact, folder.file("a"));
  EXPECT_EQ(read_text(folder.file("a")), serialize_artefact(artefact, "a"));
  const Artefact loaded = load_artefact(folder.file("a"));
  expect_equal(artefact, loaded);
  save_artefact(loaded, folder.file("b"));
  EXPECT_EQ(read_text(folder.file("a")), read_text(folder.file("b")));
}

// What only some artefacts have: bits and losses of layers, and H without P.
TEST(Artefact, OptionalPartsAreKept) {
  Artefact artefact = test_artefact();
  const std::string without = serialize_artefact(artefact, "a");
  for (const char* name : {"layer_bits", "bit_losses", "bit_reversal"}) {
    EXPECT_EQ(without.find(name), std::string::npos) << name;
  }
  artefact.bit_reversal = false;
  for (ArtefactLayer& layer : artefact.layers) {
    layer.k_bits = 2 + layer.layer;
    layer.v_bits = layer.layer == 2 ? 16 : 3;
    layer.k_losses = {0.5f, 0.25f, 0.125f * static_cast<float>(layer.layer)};
    layer.v_losses = {0.1f, 0.0f, 0.0f};
  }
  const Artefact again = EditableFile(artefact).parse();
  expect_equal(again, artefact);
  EXPECT_EQ(key_quant(again, again.layers[1]).bits, 3);
  EXPECT_EQ(value_quant(again, again.layers[2]).bits, 16);
  EXPECT_EQ(key_quant(again, again.layers[1]).codebook, artefact.k_quant.codebook);
  const Artefact plain = test_artefact();
  EXPECT_EQ(key_quant(plain, plain.layers[1]), plain.k_quant);
  EXPECT_EQ(value_quant(plain, plain.layers[1]), plain.v_quant);
}

TEST(Artefact, TrellisCodesAreKept) {
  Artefact artefact = test_artefact();
  artefact.k_quant = {2, 32, Codebook::kTrellis, ScaleFit::kUnbiased};
  artefact.v_quant.codebook = Codebook::kTrellis;
  const Artefact again = EditableFile(artefact).parse();
  expect_equal(again, artefact);
  EXPECT_EQ(again.k_quant, artefact.k_quant);
  EXPECT_EQ(again.v_quant.codebook, Codebook::kTrellis);
}

TEST(Artefact, ShapesOfKAndVMayDiffer) {
  Artefact artefact = test_artefact();
  artefact.model.head_dim_v = 48;
  for (ArtefactLayer& layer : artefact.layers) {
    layer = plain_layer(layer.layer, kTestKvHeads, kTestDim, 48,
                        random_rotations(kTestKvHeads, kTestDim, 6),
                        random_rotations(kTestKvHeads, 48, 5));
  }
  expect_equal(EditableFile(artefact).parse(), artefact);
}

TEST(Artefact, LayersMayHaveGapsWhenTheListSaysSo) {
  Artefact artefact = test_artefact();
  artefact.layers[1].layer = 5;
  artefact.layers[2].layer = 11;
  expect_equal(EditableFile(artefact).parse(), artefact);
}

// A rope whose rotation is not known is kept as such.
TEST(Artefact, RopeWithoutFrequencies) {
  Artefact artefact = test_artefact();
  artefact.ropes[0].inv_freq.clear();
  expect_equal(EditableFile(artefact).parse(), artefact);
}

// Any float survives: values are stored as bits, the magnitude as a shortest decimal.
TEST(Artefact, MagnitudeSurvivesExactly) {
  std::mt19937 random(3);
  Artefact artefact = test_artefact();
  for (int i = 0; i < 200; ++i) {
    RopeSpec rope;
    rope.magnitude = std::ldexp(1.0f + static_cast<float>(random()) * 0x1p-32f,
                                static_cast<int>(random() % 200) - 100);
    artefact.ropes.push_back(rope);
  }
  EXPECT_EQ(EditableFile(artefact).parse().ropes, artefact.ropes);
}

// A true rotation whose entries were rounded to BF16, kept as BF16 or widened again, is still a
// rotation.
TEST(Artefact, RotationsStoredAsBf16Load) {
  Artefact artefact = test_artefact();
  for (const int dim : {64, 128, 256}) {
    artefact.model.head_dim_k = artefact.model.head_dim_v = dim;
    artefact.layers.resize(1);
    artefact.model.num_layers = 1;
    artefact.layers[0] =
        plain_layer(0, kTestKvHeads, dim, dim, random_rotations(kTestKvHeads, dim, dim + 1u),
                    random_rotations(kTestKvHeads, dim, dim + 2u));
    EditableFile narrow(artefact), widened(artefact);
    for (auto& [name, tensor] : narrow.tensors) {
      if (!name.starts_with("layers.")) continue;
      std::vector<float> values = narrow.floats(name);
      std::vector<bf16_t> stored;
      for (float& value : values) {
        stored.push_back(bf16_from_float(value));
        value = bf16_to_float(stored.back());
      }
      widened.set_floats(name, values);
      tensor.dtype = DType::kBF16;
      tensor.bytes.resize(stored.size() * sizeof(bf16_t));
      std::memcpy(tensor.bytes.data(), stored.data(), tensor.bytes.size());
    }
    expect_equal(narrow.parse(), widened.parse());
    EXPECT_NE(widened.parse().layers[0].k_transform, artefact.layers[0].k_transform);
  }
}

// The older layout: one matrix for all KV heads of a layer.
TEST(Artefact, OneMatrixPerLayerIsForEveryHead) {
  Artefact artefact = test_artefact();
  ArtefactLayer& layer = artefact.layers[0];
  layer.k_transform = random_rotations(1, kTestDim, 1);
  const std::vector<float> one = layer.k_transform;
  layer.k_transform.insert(layer.k_transform.end(), one.begin(), one.end());
  EditableFile file(artefact);
  file.tensors.at("layers.0.k_transform").shape = {kTestDim, kTestDim};
  file.set_floats("layers.0.k_transform", one);
  expect_equal(file.parse(), artefact);
}

TEST(Artefact, SavingRefusesWhatLoadingWould) {
  const TestFolder folder;
  const std::string path = folder.file("a");
  write_text(path, "old");
  Artefact artefact = test_artefact();
  artefact.layers[2].v_transform[5] = std::nanf("");
  expect_error(ErrorCode::kCorrupt, {path, "layer 2 head 0", "v_transform", "nan", "value 5"},
               [&] { save_artefact(artefact, path); });
  artefact = test_artefact();
  artefact.layers[0].k_mean.resize(7);
  expect_error(ErrorCode::kCorrupt, {"layer 0", "k_mean has 7 values", "right: 64 for [2, 32]"},
               [&] { save_artefact(artefact, path); });
  artefact = test_artefact();
  artefact.info["text"] = "\xff";
  expect_error(ErrorCode::kInvalidArgument, {"info", "UTF-8"},
               [&] { save_artefact(artefact, path); });
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(folder.num_entries(), 1);
}

TEST(Artefact, LoadingNamesTheFile) {
  const TestFolder folder;
  expect_error(ErrorCode::kNotFound, {folder.file("none"), "No such file"},
               [&] { load_artefact(folder.file("none")); });
  write_text(folder.file("page.safetensors"), "<!DOCTYPE html><html></html>");
  expect_error(ErrorCode::kCorrupt, {"page.safetensors", "HTML page, not the file"},
               [&] { load_artefact(folder.file("page.safetensors")); });
}

TEST(Fingerprint, FirstDifferenceIsNamed) {
  const Artefact artefact = test_artefact();
  const ModelFingerprint& same = artefact.model;
  EXPECT_NO_THROW(check_fingerprint(artefact, same));
  const auto refused = [&](auto change, const std::vector<std::string>& parts) {
    ModelFingerprint other = same;
    change(other);
    expect_error(ErrorCode::kMismatch, parts, [&] { check_fingerprint(artefact, other); });
  };
  refused([](auto& m) { m.architecture = "qwen2"; }, {"architecture", "'llama'", "'qwen2'"});
  refused([](auto& m) { m.num_layers = 24; }, {"num_layers 3", "has 24"});
  refused([](auto& m) { m.num_q_heads = 8; }, {"num_q_heads 4", "has 8"});
  refused([](auto& m) { m.num_kv_heads = 4; }, {"num_kv_heads 2", "has 4"});
  refused([](auto& m) { m.head_dim_k = 64; }, {"head_dim_k 32", "has 64"});
  refused([](auto& m) { m.head_dim_v = 64; }, {"head_dim_v 32", "has 64"});
  // Two models of one shape, such as Mistral-7B-v0.3 and Llama-3.1-8B, differ in their weights
  // alone.
  refused([](auto& m) { m.weights_hash = "ffff"; },
          {"weights_hash", "'0123456789abcdef0123456789abcdef'", "'ffff'"});
}

TEST(Fingerprint, UnknownWeightsAreNotCompared) {
  Artefact artefact = test_artefact();
  ModelFingerprint model = artefact.model;
  model.weights_hash.clear();
  EXPECT_NO_THROW(check_fingerprint(artefact, model));
  artefact.model.weights_hash.clear();
  model.weights_hash = "ffff";
  EXPECT_NO_THROW(check_fingerprint(artefact, model));
}

}  // namespace
}  // namespace oscar
