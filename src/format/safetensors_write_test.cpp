#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/test_files.h"
#include "format/safetensors.h"

namespace oscar {
namespace {

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

TEST(SafetensorsWrite, RoundTripIsTheSame) {
  const std::string data = "abcdefghijklmnop";
  Safetensors file;
  file.metadata = {{"k", "line\nbreak, \"quote\", ü"}, {"", ""}};
  file.tensors["z"] = {DType::kF64, {1}, bytes_of(data).subspan(0, 8)};
  file.tensors["b"] = {DType::kU8, {3}, bytes_of(data).subspan(0, 3)};
  file.tensors["a"] = {DType::kU8, {1, 5}, bytes_of(data).subspan(3, 5)};
  file.tensors["m"] = {DType::kF32, {2}, bytes_of(data).subspan(8, 8)};
  file.tensors["none"] = {DType::kI64, {0}, {}};
  const std::string bytes = serialize_safetensors(file);
  const Safetensors back = parse_safetensors(bytes_of(bytes), "x");
  EXPECT_EQ(back.metadata, file.metadata);
  ASSERT_EQ(back.tensors.size(), file.tensors.size());
  for (const auto& [name, view] : file.tensors) {
    const TensorView& other = back.tensors.at(name);
    EXPECT_EQ(other.dtype, view.dtype);
    EXPECT_EQ(other.shape, view.shape);
    EXPECT_TRUE(
        std::equal(other.bytes.begin(), other.bytes.end(), view.bytes.begin(), view.bytes.end()));
    const auto offset = reinterpret_cast<const char*>(other.bytes.data()) - bytes.data();
    EXPECT_EQ(static_cast<std::uint64_t>(offset) % dtype_bytes(view.dtype), 0u) << name;
  }
  EXPECT_EQ(serialize_safetensors(back), bytes);
}

// Byte for byte, so that a change of the writer shows.
TEST(SafetensorsWrite, KnownBytes) {
  Safetensors file;
  file.metadata = {{"b", "2"}, {"a", "1"}};
  const std::string data = "wxyz";
  file.tensors["t"] = {DType::kU8, {4}, bytes_of(data)};
  const std::string json =
      R"({"__metadata__":{"a":"1","b":"2"},"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const std::string padding = "  ";
  ASSERT_EQ((json.size() + padding.size()) % 8, 0u);
  const std::uint64_t length = json.size() + padding.size();
  EXPECT_EQ(serialize_safetensors(file),
            std::string(reinterpret_cast<const char*>(&length), 8) + json + padding + data);
  EXPECT_EQ(serialize_safetensors({}).substr(8), "{}      ");
}

TEST(SafetensorsWrite, FileIsTheSerialization) {
  const TestFolder folder;
  const std::string data = "abcd";
  Safetensors file;
  file.tensors["a"] = {DType::kF32, {1}, bytes_of(data)};
  write_safetensors(file, folder.file("a"));
  EXPECT_EQ(read_text(folder.file("a")), serialize_safetensors(file));
}

TEST(SafetensorsWrite, RefusesWhatDoesNotFit) {
  const std::string data = "abcd";
  Safetensors file;
  file.tensors["a"] = {DType::kF32, {2}, bytes_of(data)};
  expect_error(ErrorCode::kInvalidArgument, {"'a'", "F32 [2]", "4 bytes"},
               [&] { serialize_safetensors(file); });
  file = {};
  file.metadata["k"] = "\xff";
  expect_error(ErrorCode::kInvalidArgument, {"'\\xff'", "UTF-8"},
               [&] { serialize_safetensors(file); });
  file = {};
  file.tensors["__metadata__"] = {DType::kF32, {1}, bytes_of(data)};
  expect_error(ErrorCode::kInvalidArgument, {"'__metadata__'"},
               [&] { serialize_safetensors(file); });
}

}  // namespace
}  // namespace oscar
