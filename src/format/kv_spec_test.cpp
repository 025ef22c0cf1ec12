#include "format/kv_spec.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_files.h"

namespace oscar {
namespace {

using Kind = KvSpec::Kind;
using Parts = std::vector<std::string>;

void refused(const std::string& text, Parts parts) {
  parts.push_back("--kv '" + text + "'");
  expect_error(ErrorCode::kInvalidArgument, parts, [&] { parse_kv_spec(text); });
}

void expect_file(const std::string& text, const std::string& file) {
  const KvSpec spec = parse_kv_spec(text);
  EXPECT_EQ(spec.kind, Kind::kFile) << text;
  EXPECT_EQ(spec.file, file);
}

TEST(KvSpec, HostTypes) {
  for (const char* name : {"f16", "q8_0", "q4_0"}) {
    const KvSpec spec = parse_kv_spec(name);
    EXPECT_EQ(spec.kind, Kind::kHostType);
    EXPECT_EQ(spec.host_type, name);
    EXPECT_EQ(spec.text, name);
  }
  refused("f16:k2v2", {"'f16'", "takes no options", "'k2v2'"});
  refused("q8_0:", {"'q8_0'", "takes no options"});
}

TEST(KvSpec, MethodsAndDefaults) {
  for (const Method method :
       {Method::kNaive, Method::kQuarot, Method::kOscar, Method::kOscarPlus}) {
    const KvSpec spec = parse_kv_spec(method_name(method));
    EXPECT_EQ(spec.kind, Kind::kMethod);
    EXPECT_EQ(spec.method, method);
    EXPECT_FALSE(spec.k_bits || spec.v_bits || spec.group_size);
    EXPECT_EQ(spec.sink_tokens, 64);
    EXPECT_EQ(spec.recent_tokens, 256);
    EXPECT_FALSE(spec.no_eigenbasis || spec.no_permutation || spec.no_hadamard || spec.no_clip ||
                 spec.no_mean || spec.unbiased || spec.trellis || spec.force_float);
  }
}

TEST(KvSpec, EveryOption) {
  const std::string text =
      "oscar-plus:k3v2,sink=0,recent=512,group=64,no-u,no-p,no-hadamard,no-clip,no-mean,unbiased,"
      "trellis,float";
  const KvSpec spec = parse_kv_spec(text);
  EXPECT_EQ(spec.text, text);
  EXPECT_EQ(spec.method, Method::kOscarPlus);
  EXPECT_EQ(spec.k_bits, 3);
  EXPECT_EQ(spec.v_bits, 2);
  EXPECT_EQ(spec.sink_tokens, 0);
  EXPECT_EQ(spec.recent_tokens, 512);
  EXPECT_EQ(spec.group_size, 64);
  EXPECT_TRUE(spec.no_eigenbasis && spec.no_permutation && spec.no_hadamard && spec.no_clip &&
              spec.no_mean && spec.unbiased && spec.trellis && spec.force_float);
}

TEST(KvSpec, OneOptionAtATime) {
  EXPECT_TRUE(parse_kv_spec("oscar:no-u").no_eigenbasis);
  EXPECT_TRUE(parse_kv_spec("oscar:no-p").no_permutation);
  EXPECT_FALSE(parse_kv_spec("oscar:no-p").no_eigenbasis);
  EXPECT_TRUE(parse_kv_spec("oscar:no-hadamard").no_hadamard);
  EXPECT_TRUE(parse_kv_spec("oscar:no-clip").no_clip);
  EXPECT_TRUE(parse_kv_spec("oscar:no-mean").no_mean);
  EXPECT_TRUE(parse_kv_spec("oscar:unbiased").unbiased);
  EXPECT_TRUE(parse_kv_spec("oscar:float").force_float);
  EXPECT_FALSE(parse_kv_spec("oscar:float").unbiased);
}

TEST(KvSpec, BitBudget) {
  EXPECT_EQ(parse_kv_spec("a.safetensors:bits=2.5,sink=0").bit_budget, 2.5);
  EXPECT_EQ(parse_kv_spec("a.safetensors:bits=3").bit_budget, 3.0);
  EXPECT_FALSE(parse_kv_spec("a.safetensors:k2v2").bit_budget);
  for (const char* value : {"", "1.9", "17", "nan", "inf", "2.5x", "0x3", "-2.5", "2,5"}) {
    const std::string text = std::string("oscar:bits=") + value;
    EXPECT_THROW(parse_kv_spec(text), Error) << text;
  }
  refused("oscar:bits=1.9", {"'bits=1.9'", "numbers from 2 to 16"});
  refused("oscar:bits=2.5,k3v2", {"'k3v2'", "bits was set before"});
  refused("oscar:k3v2,bits=2.5", {"'bits=2.5'", "bits was set before"});
}

TEST(KvSpec, Bits) {
  for (const int k : {2, 3, 4, 16}) {
    for (const int v : {2, 3, 4, 16}) {
      const KvSpec spec = parse_kv_spec("quarot:k" + std::to_string(k) + "v" + std::to_string(v));
      EXPECT_EQ(spec.k_bits, k);
      EXPECT_EQ(spec.v_bits, v);
    }
  }
  refused("quarot:k5", {"'k5'", "give both", "k3v2"});
  refused("quarot:v2", {"'v2'", "give both"});
  refused("quarot:k2v", {"'k2v'", "give both"});
  refused("quarot:v2k2", {"'v2k2'", "give both"});
  refused("quarot:k5v2", {"'k5v2'", "'5' bits", "2, 3, 4, 16"});
  refused("quarot:k2v8", {"'8' bits"});
  refused("quarot:k02v2", {"'02' bits"});
  refused("quarot:k2v2v2", {"'2v2' bits"});
  refused("quarot:k2v2x", {"'2x' bits"});
  refused("quarot:K2V2", {"'K2V2' is unknown"});
}

TEST(KvSpec, Numbers) {
  EXPECT_EQ(parse_kv_spec("oscar:sink=1048576").sink_tokens, 1048576);
  EXPECT_EQ(parse_kv_spec("oscar:group=16").group_size, 16);
  EXPECT_EQ(parse_kv_spec("oscar:group=256").group_size, 256);
  refused("oscar:sink=-1", {"'sink=-1'", "'-1'", "whole numbers from 0 to 1048576"});
  refused("oscar:recent=1048577", {"'1048577'", "from 0 to 1048576"});
  for (const std::string value :
       {"", "x", "1.5", "1e3", " 1", "+1", "99999999999999999999", "0x10"}) {
    refused("oscar:sink=" + value, {"'sink=" + value + "'", "whole numbers"});
  }
  refused("oscar:group=0", {"'0'", "from 16 to 256", "multiples of 16"});
  refused("oscar:group=40", {"'40'", "multiples of 16"});
  refused("oscar:group=512", {"'512'", "from 16 to 256"});
}

TEST(KvSpec, UnknownEmptyAndDoubledOptions) {
  refused("oscar:fast", {"'fast' is unknown", "sink=N", "no-hadamard"});
  refused("oscar:window=3", {"'window=3' is unknown"});
  refused("oscar:sink", {"'sink' is unknown"});
  refused("oscar:unbiased=1", {"'unbiased=1' is unknown"});
  refused("oscar:No-Clip", {"'No-Clip' is unknown"});
  refused("oscar: k2v2", {"' k2v2' is unknown"});
  refused("oscar:", {"an option is empty"});
  refused("oscar:k2v2,", {"an option is empty"});
  refused("oscar:,k2v2", {"an option is empty"});
  refused("oscar:k2v2,,float", {"an option is empty"});
  refused("oscar:k2v2:float", {"'2:float' bits"});
  refused("oscar:k2v2,k3v2", {"'k3v2'", "bits was set before"});
  refused("oscar:sink=1,sink=1", {"'sink=1'", "sink was set before"});
  refused("oscar:float,float", {"'float'", "set before"});
  refused("", {"it is empty", "f16"});
}

TEST(KvSpec, FilesThatDoNotExist) {
  expect_file("A.safetensors", "A.safetensors");
  expect_file("dir/oscar", "dir/oscar");
  expect_file("Quarot", "Quarot");  // names are lower case
  expect_file("A.safetensors:k3v2,sink=0", "A.safetensors");
  EXPECT_EQ(parse_kv_spec("A.safetensors:k3v2,sink=0").sink_tokens, 0);
  // A ':' that is followed by the rest of a path.
  expect_file("/mnt/c:/a.safetensors", "/mnt/c:/a.safetensors");
  expect_file("/mnt/c:/a.safetensors:k2v2", "/mnt/c:/a.safetensors");
  expect_file("run:1/a.safetensors:float", "run:1/a.safetensors");
  expect_file("oscar/x:y.safetensors", "oscar/x:y.safetensors");
  refused("A.safetensors:k5", {"'k5'", "give both"});
  refused("A.safetensors:fast", {"'fast' is unknown"});
  refused("A.safetensors:sink=1.5", {"'sink=1.5'"});
  refused("A.safetensors:", {"an option is empty"});
  refused(":k2v2", {"no method or file before the ':'"});
  refused(":", {"no method or file before the ':'"});
}

TEST(KvSpec, FilesThatExist) {
  const TestFolder folder;
  const std::string plain = folder.file("a.safetensors"), colon = folder.file("b:k2v2"),
                    other = folder.file("c:x.safetensors");
  for (const std::string& path : {plain, colon, other}) write_text(path, "");
  expect_file(plain, plain);
  expect_file(plain + ":k3v2", plain);
  expect_file(other, other);
  expect_file(other + ":k3v2", other);
  // The whole name is a file: that file, whatever its name looks like.
  expect_file(colon, colon);
  EXPECT_FALSE(parse_kv_spec(colon).k_bits);
  expect_file(colon + ":k3v2", colon);
  EXPECT_EQ(parse_kv_spec(colon + ":k3v2").k_bits, 3);
  // What follows an existing file can only be options.
  refused(plain + ":x.y", {"'x.y' is unknown"});
  expect_file(plain + ":k2v2:float", plain + ":k2v2");  // cut at the last ':'
}

}  // namespace
}  // namespace oscar
