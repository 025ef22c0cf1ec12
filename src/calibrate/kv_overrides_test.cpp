#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>

#include "base/error.h"
#include "calibrate/calibrate_test_support.h"
#include "calibrate/methods.h"
#include "methods/hadamard.h"

namespace oscar::calibrate {
namespace {

LayerIndexShape layer_of(int layer, int head_dim_k, int head_dim_v) {
  return {
      layer,
      {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_k = head_dim_k, .head_dim_v = head_dim_v}};
}

Artefact quarot() { return make_data_free(Method::kQuarot, {}, {layer_of(0, 64, 64)}); }

Artefact calibrated(Method method) {
  const RopeTable table(synthetic_rope(64), 4096);
  SyntheticOptions options;
  options.num_tokens = 400;
  options.key_deviation.assign(64, 1.0f);
  options.query_deviation.assign(64, 1.0f);
  options.key_deviation[3] = options.key_deviation[35] = 40.0f;
  options.query_deviation[3] = options.query_deviation[35] = 0.02f;
  Collector collector({});
  feed(make_synthetic(options, &table), 0, 400, &table, &collector);
  return fit(collector.statistics(), {}, {.method = method});
}

std::string refusal(const std::string& spec, Artefact artefact) {
  try {
    apply_kv_spec(parse_kv_spec(spec), &artefact);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

void expect_identity(const std::vector<float>& matrices, int dim, float tolerance) {
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const std::size_t at = i % (std::size_t(dim) * dim);
    ASSERT_NEAR(matrices[i], at % (dim + 1) == 0 ? 1.0f : 0.0f, tolerance) << "at " << i;
  }
}

TEST(DataFree, MakesOneTransformAHeadInLayerOrder) {
  ModelFingerprint model;
  model.architecture = "llama";
  const Artefact artefact =
      make_data_free(Method::kQuarot, model, {layer_of(7, 64, 128), layer_of(2, 192, 64)});
  ASSERT_EQ(artefact.layers.size(), 2u);
  EXPECT_EQ(artefact.layers[0].layer, 2);
  EXPECT_EQ(artefact.layers[1].layer, 7);
  EXPECT_EQ(artefact.model.architecture, "llama");
  EXPECT_EQ(artefact.k_quant, (QuantSpec{2, 64, Codebook::kAffine, ScaleFit::kPlain}));
  const std::vector<float> mix = methods::hadamard_times_p(192);
  for (std::size_t i = 0; i < 2 * mix.size(); ++i) {
    ASSERT_EQ(artefact.layers[0].k_transform[i], mix[i % mix.size()]);
  }
  EXPECT_TRUE(artefact.hadamard);
}

TEST(DataFree, NaiveIsTheIdentity) {
  const Artefact artefact = make_data_free(Method::kNaive, {}, {layer_of(0, 80, 80)});
  EXPECT_FALSE(artefact.hadamard);
  EXPECT_EQ(artefact.k_quant.group_size, 80);
  expect_identity(artefact.layers[0].k_transform, 80, 0.0f);
  expect_identity(artefact.layers[0].v_transform, 80, 0.0f);
}

TEST(DataFree, RefusesWhatItCannotMake) {
  EXPECT_THROW(make_data_free(Method::kOscar, {}, {layer_of(0, 64, 64)}), Error);
  EXPECT_THROW(make_data_free(Method::kQuarot, {}, {}), Error);
  EXPECT_THROW(make_data_free(Method::kQuarot, {}, {layer_of(0, 72, 64)}), Error);
  EXPECT_THROW(make_data_free(Method::kQuarot, {}, {layer_of(0, 64, 576)}), Error);
  EXPECT_THROW(make_data_free(Method::kQuarot, {}, {layer_of(3, 64, 64), layer_of(3, 64, 64)}),
               Error);
}

TEST(KvOverrides, SetBitsGroupAndScale) {
  Artefact artefact = quarot();
  apply_kv_spec(parse_kv_spec("quarot:k3v16,group=32,unbiased"), &artefact);
  EXPECT_EQ(artefact.k_quant, (QuantSpec{3, 32, Codebook::kAffine, ScaleFit::kUnbiased}));
  EXPECT_EQ(artefact.v_quant.bits, 16);
  EXPECT_EQ(artefact.v_quant.scale_fit, ScaleFit::kPlain);
}

TEST(KvOverrides, AGroupOfWholeRowsIsRefused) {
  const Artefact turbo = make_data_free(Method::kTurboquant, {}, {layer_of(0, 64, 64)});
  EXPECT_NE(refusal("turboquant:group=16", turbo).find("leave the option out"), std::string::npos);
}

TEST(KvOverrides, ABudgetIsSpentByTheLosses) {
  Artefact artefact = make_uncalibrated(Method::kOscarPlus, {}, {layer_of(0, 64, 64)});
  EXPECT_NE(refusal("a.safetensors:bits=2.75", artefact).find("no losses"), std::string::npos);
  artefact.layers[0].k_losses = {4, 1, 0.2f};
  artefact.layers[0].v_losses = {3, 1, 0.2f};
  apply_kv_spec(parse_kv_spec("a.safetensors:bits=2.75"), &artefact);
  EXPECT_EQ(key_quant(artefact, artefact.layers[0]).bits, 3);
  EXPECT_EQ(value_quant(artefact, artefact.layers[0]).bits, 2);
  // The same bits everywhere take the place of a budget's.
  apply_kv_spec(parse_kv_spec("a.safetensors:k2v4"), &artefact);
  EXPECT_EQ(key_quant(artefact, artefact.layers[0]).bits, 2);
  EXPECT_EQ(value_quant(artefact, artefact.layers[0]).bits, 4);
  EXPECT_NE(refusal("a.safetensors:bits=2.1", artefact).find("at least 2.25"), std::string::npos);
}

TEST(KvOverrides, TrellisCodesOfTwoBitsWithoutZeroPoints) {
  Artefact artefact = calibrated(Method::kOscarPlus);
  ASSERT_FALSE(artefact.layers[0].k_clip[clip_index(2)].empty());
  const auto k3_clip = artefact.layers[0].k_clip[clip_index(3)];
  apply_kv_spec(parse_kv_spec("oscar-plus:trellis"), &artefact);
  EXPECT_EQ(artefact.k_quant.codebook, Codebook::kTrellis);
  EXPECT_EQ(artefact.v_quant.codebook, Codebook::kTrellis);
  EXPECT_EQ(artefact.k_quant.scale_fit, ScaleFit::kUnbiased);
  // Clips of four levels are none of eight.
  EXPECT_TRUE(artefact.layers[0].k_clip[clip_index(2)].empty());
  EXPECT_TRUE(artefact.layers[0].v_clip[clip_index(2)].empty());
  EXPECT_EQ(artefact.layers[0].k_clip[clip_index(3)], k3_clip);
  EXPECT_NE(refusal("a.safetensors:k3v2", artefact).find("trellis: keys have 3 bits"),
            std::string::npos);
  EXPECT_EQ(refusal("a.safetensors:k16v2", artefact), "");
}

TEST(KvOverrides, TrellisIsRefusedWhereItDoesNotFit) {
  const Artefact plus = make_uncalibrated(Method::kOscarPlus, {}, {layer_of(0, 64, 64)});
  EXPECT_NE(refusal("oscar-plus:k2v4,trellis", plus).find("values have 4 bits"), std::string::npos);
  EXPECT_NE(refusal("quarot:trellis", quarot()).find("quarot stores zero points"),
            std::string::npos);
  EXPECT_NE(refusal("oscar-plus:k16v16,trellis", plus).find("leave the option out"),
            std::string::npos);
  const Artefact kivi = make_data_free(Method::kKivi, {}, {layer_of(0, 64, 64)});
  EXPECT_NE(refusal("kivi:trellis", kivi).find("kivi has a layout of its own"), std::string::npos);
  Artefact by_layer = plus;
  by_layer.layers[0].k_bits = 3;
  by_layer.layers[0].v_bits = 2;
  EXPECT_NE(refusal("a.safetensors:trellis", by_layer).find("layer 0's keys have 3 bits"),
            std::string::npos);
}

TEST(KvOverrides, DefaultGroupShrinksToTheHeads) {
  Artefact artefact = make_data_free(Method::kNaive, {}, {layer_of(0, 96, 64)});
  artefact.k_quant.group_size = artefact.v_quant.group_size = 128;
  apply_kv_spec(parse_kv_spec("naive"), &artefact);
  EXPECT_EQ(artefact.k_quant.group_size, 96);
  EXPECT_EQ(artefact.v_quant.group_size, 64);
}

TEST(KvOverrides, QuarotWithoutHadamardIsTheIdentity) {
  for (const int dim : {64, 96, 128}) {
    Artefact artefact = make_data_free(Method::kQuarot, {}, {layer_of(0, dim, dim)});
    apply_kv_spec(parse_kv_spec("quarot:no-hadamard"), &artefact);
    EXPECT_FALSE(artefact.hadamard);
    // Entries are rounded to float: d products of relative error 2⁻²⁴.
    expect_identity(artefact.layers[0].k_transform, dim, 1e-6f);
    expect_identity(artefact.layers[0].v_transform, dim, 1e-6f);
  }
}

TEST(KvOverrides, CalibratedWithoutHadamardKeepsTheEigenbasis) {
  const Artefact with = calibrated(Method::kOscar);
  Artefact without = with;
  apply_kv_spec(parse_kv_spec("oscar:no-hadamard"), &without);
  const std::vector<float> mix = methods::hadamard_times_p(64);
  for (int head = 0; head < 2; ++head) {
    const float* kept = without.layers[0].k_transform.data() + head * 64 * 64;
    for (int i = 0; i < 64; ++i) {
      for (int j = 0; j < 64; ++j) {
        double product = 0;
        for (int k = 0; k < 64; ++k) product += double(kept[i * 64 + k]) * double(mix[k * 64 + j]);
        ASSERT_NEAR(product, with.layers[0].k_transform[(head * 64 + i) * 64 + j], 1e-6);
      }
    }
  }
}

TEST(KvOverrides, SmoothingWithoutHadamardIsDiagonal) {
  Artefact artefact = calibrated(Method::kOscarPlus);
  ASSERT_TRUE(artefact.key_smoothing);
  apply_kv_spec(parse_kv_spec("a.safetensors:no-hadamard"), &artefact);
  const ArtefactLayer& layer = artefact.layers[0];
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j) {
      const float key = layer.k_transform[i * 64 + j];
      const float query = layer.k_transform_inverse_transposed[i * 64 + j];
      if (i == j) {
        EXPECT_NEAR(key * query, 1.0f, 1e-5f);
      } else {
        EXPECT_NEAR(key, 0.0f, 1e-6f * layer.k_transform[i * 65]);
        EXPECT_NEAR(query, 0.0f, 1e-6f * layer.k_transform_inverse_transposed[i * 65]);
      }
    }
  }
}

// Everything of the artefact that an option about transforms must leave alone.
void expect_same_but_transforms(const Artefact& a, const Artefact& b) {
  EXPECT_EQ(a.k_quant, b.k_quant);
  EXPECT_EQ(a.v_quant, b.v_quant);
  EXPECT_EQ(a.hadamard, b.hadamard);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    EXPECT_EQ(a.layers[i].k_clip, b.layers[i].k_clip);
    EXPECT_EQ(a.layers[i].v_clip, b.layers[i].v_clip);
    EXPECT_EQ(a.layers[i].k_mean, b.layers[i].k_mean);
    EXPECT_EQ(a.layers[i].v_mean, b.layers[i].v_mean);
    EXPECT_EQ(a.layers[i].rope, b.layers[i].rope);
  }
}

TEST(KvOverrides, WithoutTheEigenbasisItIsTheHadamard) {
  const Artefact with = calibrated(Method::kOscar);
  Artefact without = with;
  apply_kv_spec(parse_kv_spec("a.safetensors:no-u"), &without);
  expect_same_but_transforms(with, without);
  const std::vector<float> mix = methods::hadamard_times_p(64);
  for (std::size_t i = 0; i < 2 * mix.size(); ++i) {
    ASSERT_EQ(without.layers[0].k_transform[i], mix[i % mix.size()]);
    ASSERT_EQ(without.layers[0].v_transform[i], mix[i % mix.size()]);
  }
  EXPECT_NE(refusal("a.safetensors:no-u", without).find("no eigenbasis"), std::string::npos);
}

TEST(KvOverrides, WithoutTheEigenbasisSmoothingStays) {
  const Artefact with = calibrated(Method::kOscarPlus);
  ASSERT_FALSE(with.layers[0].k_transform_inverse_transposed.empty());
  Artefact without = with;
  without.layers[0].v_transform[1] += 0.1f;  // no longer the mix: something to leave out
  apply_kv_spec(parse_kv_spec("a.safetensors:no-u"), &without);
  expect_same_but_transforms(with, without);
  EXPECT_EQ(with.layers[0].k_transform, without.layers[0].k_transform);
  EXPECT_EQ(with.layers[0].k_transform_inverse_transposed,
            without.layers[0].k_transform_inverse_transposed);
}

TEST(KvOverrides, WithoutThePermutationChannelsAreInHadamardsOrder) {
  for (const Method method : {Method::kOscar, Method::kOscarPlus}) {
    const Artefact with = calibrated(method);
    Artefact without = with;
    apply_kv_spec(parse_kv_spec("a.safetensors:no-p"), &without);
    expect_same_but_transforms(with, without);
    EXPECT_FALSE(without.bit_reversal);
    // H·P holds column rev(j) of H in place j: the sign of H's entry (i, j) is the parity of i & j.
    const std::vector<float> mix = methods::hadamard_times_p(64);
    Artefact quarot_without = quarot();
    apply_kv_spec(parse_kv_spec("quarot:no-p"), &quarot_without);
    for (int i = 0; i < 64; ++i) {
      for (int j = 0; j < 64; ++j) {
        const float sign = std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1.0f : -1.0f;
        ASSERT_EQ(quarot_without.layers[0].k_transform[i * 64 + j], sign * 0.125f);
        int place = 0;  // where P puts column j
        while (mix[i * 64 + place] != quarot_without.layers[0].k_transform[i * 64 + j] ||
               with.layers[0].k_transform[place] != without.layers[0].k_transform[j]) {
          ASSERT_LT(++place, 64);
        }
      }
    }
    // The same rotation without H, whether P was there or not.
    Artefact u = with, u_without = without;
    apply_kv_spec(parse_kv_spec("a.safetensors:no-hadamard"), &u);
    apply_kv_spec(parse_kv_spec("a.safetensors:no-hadamard"), &u_without);
    for (std::size_t i = 0; i < u.layers[0].k_transform.size(); ++i) {
      ASSERT_NEAR(u.layers[0].k_transform[i], u_without.layers[0].k_transform[i], 1e-5f);
    }
    EXPECT_NE(refusal("a.safetensors:no-p", without).find("no-p"), std::string::npos);
    EXPECT_NE(refusal("a.safetensors:no-p,no-hadamard", with).find("no-p"), std::string::npos);
  }
}

TEST(KvOverrides, LeaveOutClipAndMeans) {
  Artefact artefact = calibrated(Method::kOscarPlus);
  apply_kv_spec(parse_kv_spec("a.safetensors:no-clip,no-mean"), &artefact);
  const ArtefactLayer& layer = artefact.layers[0];
  EXPECT_TRUE(layer.k_mean.empty() && layer.v_mean.empty());
  EXPECT_EQ(layer.rope, -1);
  for (int index = 0; index < kNumClipBits; ++index) {
    EXPECT_TRUE(layer.k_clip[index].empty() && layer.v_clip[index].empty());
  }
}

TEST(KvOverrides, RefuseWhatDoesNotFit) {
  const Artefact naive = make_data_free(Method::kNaive, {}, {layer_of(0, 64, 64)});
  EXPECT_NE(refusal("naive:no-hadamard", naive).find("no-hadamard: the transforms of naive"),
            std::string::npos);
  EXPECT_NE(refusal("quarot:no-clip", quarot()).find("no-clip"), std::string::npos);
  EXPECT_NE(refusal("quarot:no-mean", quarot()).find("no-mean"), std::string::npos);
  EXPECT_NE(refusal("quarot:no-u", quarot()).find("no eigenbasis"), std::string::npos);
  EXPECT_NE(refusal("naive:no-p", naive).find("no-p: naive"), std::string::npos);
  const Artefact odd = make_data_free(Method::kQuarot, {}, {layer_of(0, 64, 96)});
  EXPECT_NE(refusal("quarot:no-p", odd).find("head size 96"), std::string::npos);
  EXPECT_NE(refusal("quarot:k16v2,unbiased", quarot()).find("unbiased"), std::string::npos);
  const Artefact plus = make_uncalibrated(
      Method::kOscarPlus, {},
      {{0, {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64}}});
  EXPECT_EQ(refusal("a.safetensors:unbiased", plus),
            "unbiased: the key scale of oscar-plus is unbiased already; leave the option out");
  EXPECT_EQ(refusal("quarot:k16v16,float", quarot()),
            "float: keys and values at 16 bits are in floats already; leave the option out");
  EXPECT_EQ(refusal("quarot:k16v2,float", quarot()), "");
  for (const char* option : {"no-hadamard", "group=32", "no-u", "no-mean"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find('='));
    EXPECT_EQ(
        refusal("a.safetensors:k16v16," + std::string(option), plus),
        name + ": keys and values at 16 bits are exact, it would change nothing; leave it out");
  }
  EXPECT_EQ(refusal("quarot:k16v2,sink=0,group=32", quarot()), "");
  const Artefact mixed =
      make_data_free(Method::kQuarot, {}, {layer_of(0, 64, 64), layer_of(5, 64, 96)});
  EXPECT_EQ(refusal("quarot:group=64", mixed),
            "group=64 does not fit head size 96 of layer 5; legal: multiples of 16 that divide it");
  EXPECT_EQ(refusal("quarot:group=32", mixed), "");
}

}  // namespace
}  // namespace oscar::calibrate
