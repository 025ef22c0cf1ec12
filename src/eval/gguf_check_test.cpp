// Headers that lie. Every one is refused in one line that names the key or the tensor; the good
// file that they are made from is read.
#include "eval/gguf_check.h"

#include <gguf.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "eval/model_file.h"

namespace oscar::eval {
namespace {

// Writes a GGUF file byte by byte, right or wrong.
class Bytes {
 public:
  template <typename T>
  Bytes& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& raw(const std::string& text) {
    bytes_ += text;
    return *this;
  }
  Bytes& text(const std::string& text) { return put<std::uint64_t>(text.size()).raw(text); }
  Bytes& header(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    return raw("GGUF").put(version).put(tensors).put(keys);
  }
  Bytes& key_u32(const std::string& key, std::uint32_t value) {
    return text(key).put<std::uint32_t>(GGUF_TYPE_UINT32).put(value);
  }
  Bytes& key_text(const std::string& key, const std::string& value) {
    return text(key).put<std::uint32_t>(GGUF_TYPE_STRING).text(value);
  }
  Bytes& tensor(const std::string& name, const std::vector<std::uint64_t>& dims,
                std::uint32_t type = GGML_TYPE_F32, std::uint64_t offset = 0) {
    text(name).put<std::uint32_t>(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) put(dim);
    return put(type).put(offset);
  }
  Bytes& pad(std::size_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  Bytes& zeros(std::size_t count) {
    bytes_.append(count, '\0');
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

constexpr std::size_t kGoodDataBytes = 32 * 4 + 32 * 3 * 4;

Bytes good_file() {
  Bytes file;
  file.header(2, 6)
      .key_text("general.architecture", "llama")
      .key_u32("llama.block_count", 2)
      .key_u32("llama.embedding_length", 256)
      .key_u32("llama.attention.head_count", 4)
      .key_u32("llama.attention.head_count_kv", 2)
      .key_u32("llama.context_length", 2048)
      .tensor("a.weight", {32})
      .tensor("experts.weight", {8, 4, 3}, GGML_TYPE_F32, 32 * 4)
      .pad(32)
      .zeros(kGoodDataBytes);
  return file;
}

class GgufFiles : public testing::Test {
 protected:
  GgufFiles() : folder_(testing::TempDir() + "oscar_gguf_" + std::to_string(::getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~GgufFiles() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& bytes, const std::string& name = "model.gguf") {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  // The message, which must be one line with the path in it.
  std::string refusal(const std::string& bytes) {
    const std::string path = write(bytes);
    try {
      check_gguf(path);
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.find(path), 0u) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      return message;
    }
    return "accepted";
  }

  void expect_refused(const Bytes& file, const std::string& part) {
    EXPECT_NE(refusal(file.bytes()).find(part), std::string::npos)
        << "'" << refusal(file.bytes()) << "' lacks '" << part << "'";
  }

 private:
  std::string folder_;
};

TEST_F(GgufFiles, AGoodFileIsRead) {
  const GgufHeader header = check_gguf(write(good_file().bytes()));
  EXPECT_EQ(header.num_tensors, 2u);
  EXPECT_EQ(header.text("general.architecture"), "llama");
  EXPECT_EQ(header.integer("llama.block_count"), 2);
  EXPECT_EQ(header.data_bytes, kGoodDataBytes);
  EXPECT_EQ(header.data_offset % 32, 0u);
  EXPECT_THROW(header.integer("general.architecture"), Error);
  EXPECT_FALSE(header.integer("no.such.key"));
}

TEST_F(GgufFiles, ShapeComesFromTheKeys) {
  const ModelFile model = open_model_file(write(good_file().bytes()));
  EXPECT_EQ(model.fingerprint.architecture, "llama");
  EXPECT_EQ(model.fingerprint.num_layers, 2);
  EXPECT_EQ(model.fingerprint.num_q_heads, 4);
  EXPECT_EQ(model.fingerprint.num_kv_heads, 2);
  EXPECT_EQ(model.fingerprint.head_dim_k, 64);
  EXPECT_EQ(model.context_length, 2048);
  EXPECT_EQ(model.fingerprint.weights_hash.size(), 32u);
}

TEST_F(GgufFiles, OtherWeightsHaveAnotherHash) {
  std::string bytes = good_file().bytes();
  const std::string hash = open_model_file(write(bytes)).fingerprint.weights_hash;
  bytes.back() = 1;
  EXPECT_NE(open_model_file(write(bytes)).fingerprint.weights_hash, hash);
}

TEST_F(GgufFiles, CutFilesAreRefusedWhereverTheyEnd) {
  const std::string bytes = good_file().bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(refusal(bytes.substr(0, size)), "accepted") << size << " of " << bytes.size();
  }
}

TEST_F(GgufFiles, VersionsAndMagic) {
  expect_refused(Bytes().raw("GGML").zeros(60), "begins with 'GGML'");
  expect_refused(Bytes().raw("<!DOCTYPE html><html>"), "no GGUF file");
  for (const std::uint32_t version : {0u, 1u, 2u, 99u}) {
    expect_refused(Bytes().header(0, 0, version), "version " + std::to_string(version));
  }
  expect_refused(Bytes().header(0, 0, 0x03000000u), "big-endian");
}

TEST_F(GgufFiles, CountsThatCannotBe) {
  expect_refused(Bytes().header(std::uint64_t{1} << 60, 0), "1152921504606846976 tensors");
  expect_refused(Bytes().header(0, UINT64_MAX), "18446744073709551615 keys");
  expect_refused(Bytes().header(1000, 0).zeros(100), "1000 tensors");
  expect_refused(Bytes().header(0, 1000).zeros(100), "1000 keys");
}

TEST_F(GgufFiles, NamesOfKeys) {
  expect_refused(Bytes().header(0, 1).text("").zeros(32), "key 0 has an empty name");
  expect_refused(Bytes().header(0, 1).put(std::uint64_t{1} << 63).zeros(32), "9223372036854775808");
  expect_refused(Bytes().header(0, 1).put<std::uint64_t>(60).zeros(32), "key 0");
  expect_refused(Bytes().header(0, 2).key_u32("twice", 1).key_u32("twice", 1), "'twice'");
}

TEST_F(GgufFiles, ValuesOfKeys) {
  expect_refused(Bytes().header(0, 1).text("odd").put<std::uint32_t>(77).zeros(32), "'odd'");
  expect_refused(
      Bytes().header(0, 1).text("s").put<std::uint32_t>(GGUF_TYPE_STRING).put(UINT64_MAX), "'s'");
  for (const std::uint32_t type : {GGUF_TYPE_UINT8, GGUF_TYPE_STRING, GGUF_TYPE_FLOAT64}) {
    expect_refused(Bytes()
                       .header(0, 1)
                       .text("list")
                       .put<std::uint32_t>(GGUF_TYPE_ARRAY)
                       .put(type)
                       .put(std::uint64_t{1} << 61)
                       .zeros(64),
                   "'list'");
  }
  expect_refused(Bytes()
                     .header(0, 1)
                     .text("nested")
                     .put<std::uint32_t>(GGUF_TYPE_ARRAY)
                     .put<std::uint32_t>(GGUF_TYPE_ARRAY)
                     .put<std::uint64_t>(1)
                     .zeros(64),
                 "'nested'");
}

TEST_F(GgufFiles, Alignments) {
  for (const std::uint32_t alignment : {0u, 3u, 48u}) {
    expect_refused(Bytes().header(0, 1).key_u32("general.alignment", alignment),
                   "'general.alignment' is " + std::to_string(alignment));
  }
  expect_refused(Bytes().header(0, 1).key_text("general.alignment", "32"), "'general.alignment'");
  Bytes aligned;
  aligned.header(1, 1).key_u32("general.alignment", 64).tensor("t", {4}).pad(64).zeros(16);
  EXPECT_EQ(refusal(aligned.bytes()), "accepted");
}

TEST_F(GgufFiles, ShapesThatCannotBe) {
  const auto with = [](const std::vector<std::uint64_t>& dims) {
    return Bytes().header(1, 0).tensor("odd.weight", dims).zeros(64);
  };
  expect_refused(with({0, 4}), "'odd.weight': dimension 0 is 0");
  expect_refused(with({4, 0}), "'odd.weight': dimension 1 is 0");
  expect_refused(with({INT64_MAX, 2}), "'odd.weight'");
  expect_refused(with({UINT64_MAX}), "'odd.weight'");
  expect_refused(with({1u << 31, 1u << 31, 1u << 31}), "'odd.weight'");
  expect_refused(with({1, 1, 1, 1, 1}), "'odd.weight' has 5 dimensions");
  expect_refused(with({}), "'odd.weight' has 0 dimensions");
  Bytes million;
  million.header(1, 0).text("odd.weight").put<std::uint32_t>(1000000).zeros(64);
  expect_refused(million, "'odd.weight' has 1000000 dimensions");
}

TEST_F(GgufFiles, TensorTypesAndPlaces) {
  expect_refused(Bytes().header(1, 0).tensor("t", {4}, 9999).zeros(64), "'t'");
  expect_refused(Bytes().header(1, 0).tensor("t", {33}, GGML_TYPE_Q4_0).zeros(64), "'t'");
  expect_refused(Bytes().header(1, 0).tensor("t", {4}, GGML_TYPE_F32, 32).zeros(64), "'t'");
  expect_refused(
      Bytes().header(2, 0).tensor("t", {4}).tensor("t", {4}, GGML_TYPE_F32, 32).zeros(128), "'t'");
  expect_refused(Bytes().header(1, 0).tensor(std::string(64, 'n'), {4}).zeros(64), "tensor 0");
  expect_refused(Bytes().header(1, 0).tensor("big", {std::uint64_t{1} << 40}).zeros(64),
                 "truncated GGUF file: tensor 'big'");
}

TEST_F(GgufFiles, ShardsAreOpenedTogether) {
  const auto shard = [](std::uint32_t number) {
    Bytes file;
    file.header(0, 7)
        .key_text("general.architecture", "llama")
        .key_u32("llama.block_count", 2)
        .key_u32("llama.embedding_length", 256)
        .key_u32("llama.attention.head_count", 4)
        .key_u32("split.no", number)
        .key_u32("split.count", 2)
        .key_u32("split.tensors.count", 0);
    return file.bytes();
  };
  const std::string first = write(shard(0), "s-00001-of-00002.gguf");
  const std::string second = write(shard(1), "s-00002-of-00002.gguf");
  EXPECT_EQ(open_model_file(first).fingerprint.num_layers, 2);
  EXPECT_THROW(open_model_file(second), Error);
  EXPECT_THROW(open_model_file(write(shard(0), "misnamed.gguf")), Error);
  ::unlink(second.c_str());
  EXPECT_THROW(open_model_file(first), Error);
}

TEST_F(GgufFiles, ShapesOfModelsThatCannotBe) {
  const auto with = [](const std::string& key, std::uint32_t value) {
    Bytes file;
    const std::vector<std::pair<std::string, std::uint32_t>> keys = {
        {"llama.block_count", 2},
        {"llama.embedding_length", 256},
        {"llama.attention.head_count", 4}};
    file.header(0, 1 + keys.size()).key_text("general.architecture", "llama");
    for (const auto& [name, right] : keys) file.key_u32(name, name == key ? value : right);
    return file.bytes();
  };
  for (const char* key : {"llama.block_count", "llama.embedding_length"}) {
    for (const std::uint32_t value : {0u, UINT32_MAX}) {
      EXPECT_THROW(open_model_file(write(with(key, value))), Error) << key << " " << value;
    }
  }
  EXPECT_THROW(open_model_file(write(with("llama.attention.head_count", UINT32_MAX))), Error);
  EXPECT_THROW(open_model_file(write(Bytes().header(0, 0).bytes())), Error);
}

// Headers as long as a file can make them stay within the limits of what is kept.
TEST_F(GgufFiles, LongHeadersCostLittleMemory) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "freed memory is kept back by the address sanitizer, so resident size says nothing";
#endif
  Bytes file;
  constexpr std::uint64_t kNumKeys = 4000;
  file.header(0, kNumKeys);
  for (std::uint64_t key = 0; key < kNumKeys; ++key) {
    file.text("key" + std::to_string(key))
        .put<std::uint32_t>(GGUF_TYPE_ARRAY)
        .put<std::uint32_t>(GGUF_TYPE_UINT8)
        .put<std::uint64_t>(kMaxKeptElements)
        .zeros(kMaxKeptElements);
  }
  const std::string path = write(file.bytes());
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_EQ(check_gguf(path).values.size(), kNumKeys);
  ::getrusage(RUSAGE_SELF, &after);
  constexpr long kSlackKib = 16 << 10;  // of the map's nodes and the allocator
  EXPECT_LE(after.ru_maxrss - before.ru_maxrss,
            static_cast<long>(kMaxKeptBytes / 1024) + kSlackKib);
}

}  // namespace
}  // namespace oscar::eval
