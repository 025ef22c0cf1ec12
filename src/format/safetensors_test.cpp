#include "format/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>

#include "base/test_files.h"

namespace oscar {
namespace {

using Parts = std::vector<std::string>;

std::string with_length(std::uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + rest;
}

std::string container(const std::string& header, const std::string& data = "") {
  return with_length(header.size(), header + data);
}

Safetensors parse(const std::string& bytes) {
  return parse_safetensors({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()},
                           "x");
}

void refused(const std::string& bytes, Parts parts) {
  parts.push_back("'x': ");
  expect_error(ErrorCode::kCorrupt, parts, [&] { parse(bytes); });
}

const std::string kOne = R"({"a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}})";

TEST(Safetensors, ReadsWhatIsThere) {
  const std::string bytes = container(
      R"({"__metadata__":{"k":"v","":""},"b":{"shape":[],"data_offsets":[4,8],"dtype":"F32"},)"
      R"("empty":{"dtype":"I64","shape":[3,0],"data_offsets":[4,4]},)"
      R"("a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}}   )",
      "abcdefgh");
  const Safetensors file = parse(bytes);
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"", ""}, {"k", "v"}}));
  ASSERT_EQ(file.tensors.size(), 3u);
  const TensorView& a = file.tensors.at("a");
  EXPECT_EQ(a.dtype, DType::kU8);
  EXPECT_EQ(a.shape, (std::vector<std::uint64_t>{2, 2}));
  EXPECT_EQ(std::string(a.bytes.begin(), a.bytes.end()), "abcd");
  EXPECT_EQ(file.tensors.at("b").bytes.size(), 4u);
  EXPECT_TRUE(file.tensors.at("b").shape.empty());
  EXPECT_TRUE(file.tensors.at("empty").bytes.empty());
  EXPECT_TRUE(parse(container("{}")).tensors.empty());
}

TEST(Safetensors, LengthsThatLie) {
  refused("", {"it has 0 bytes"});
  refused("1234567", {"it has 7 bytes"});
  refused(with_length(0, ""), {"does not begin with '{'"});
  refused(with_length(1, ""), {"header length is 1", "only 0 follow"});
  refused(with_length(UINT64_MAX, "{}"), {"18446744073709551615", "at most 100000000"});
  refused(with_length(UINT64_MAX - 7, "{}"), {"at most 100000000"});
  refused(with_length(101'000'000, "{}"), {"101000000", "at most 100000000"});
  refused(with_length(100'000'000, "{}"), {"100000000", "only 2 follow"});
  refused(with_length(3, "{}"), {"header length is 3", "only 2 follow"});
}

TEST(Safetensors, FilesOfAnotherKind) {
  refused("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n",
          {"this is a Git LFS pointer, not the file"});
  for (const char* page : {"<!DOCTYPE html><html>", "\n  <HTML><head>",
                           "\xef\xbb\xbf<!doctype html>", "<?xml version='1.0'?>", "<html>"}) {
    refused(page, {"HTML page, not the file"});
  }
  refused("GGUF\x03", {"GGUF model"});
  refused("PK\x03\x04zip", {"zip or PyTorch"});
}

TEST(Safetensors, OffsetsThatLie) {
  const auto header = [](const std::string& offsets) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + offsets + "}}";
  };
  EXPECT_NO_THROW(parse(container(header("[0,4]"), "abcd")));
  refused(container(header("[4,0]"), "abcd"), {"'a'", "reversed", "[4, 0]"});
  refused(container(header("[-4,0]"), "abcd"), {"'a'", "-4", "data_offsets", "from 0"});
  refused(container(header("[0,4,8]"), "abcd"), {"'a'", "more than two data_offsets"});
  refused(container(header("[4]"), "abcd"), {"'a'", "1 data_offsets", "two"});
  refused(container(header("[]"), "abcd"), {"'a'", "0 data_offsets"});
  refused(container(header("[0,4.0]"), "abcd"), {"'a'", "4.0"});
  refused(container(header("[0,\"4\"]"), "abcd"), {"'a'", "the text '4'"});
  refused(container(header("[[0,4]]"), "abcd"), {"'a'", "an array in its data_offsets"});
  refused(container(header("4"), "abcd"), {"data_offsets"});
  refused(container(header("[0,99999999999999999999]"), "abcd"), {"99999999999999999999"});
  refused(container(header("[18446744073709551612,18446744073709551615]"), "abcd"),
          {"'a'", "18446744073709551612", "4 bytes of data"});
  refused(container(header("[0,4]"), "abc"), {"'a'", "[0, 4]", "3 bytes of data", "cut short"});
  refused(container(header("[0,3]"), "abc"), {"'a'", "[0, 3]", "U8 [4] takes 4 bytes"});
  refused(container(header("[0,4]"), "abcdefgh"), {"4 bytes after the last tensor"});
  refused(container("{}", "abcd"), {"4 bytes after the last tensor"});
}

TEST(Safetensors, HolesAndOverlaps) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  EXPECT_NO_THROW(parse(container(two("[4,8]", "[0,4]"), "abcdefgh")));
  refused(container(two("[0,4]", "[2,6]"), "abcdef"), {"'b'", "byte 2", "end at 4", "overlap"});
  refused(container(two("[0,4]", "[0,4]"), "abcd"), {"byte 0", "end at 4", "overlap"});
  refused(container(two("[0,4]", "[6,10]"), "abcdefghij"), {"'b'", "byte 6", "a hole"});
  refused(container(two("[2,6]", "[6,10]"), "abcdefghij"), {"'a'", "byte 2", "end at 0", "a hole"});
}

TEST(Safetensors, ShapesThatLie) {
  const auto shaped = [](const std::string& shape) {
    return container(R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,0]}})");
  };
  EXPECT_NO_THROW(parse(shaped("[0]")));
  refused(shaped("[4611686018427387904]"), {"'a'", "too large"});
  refused(shaped("[4294967296,4294967296]"), {"'a'", "too large"});
  refused(shaped("[-1]"), {"'a'", "-1", "shape"});
  refused(shaped("[1,1,1,1,1,1,1,1,1]"), {"'a'", "more than 8 dimensions"});
  refused(shaped("[1.5]"), {"'a'", "1.5", "shape"});
  refused(shaped("{}"), {"'a'", "an object"});
  refused(shaped("null"), {"'a'", "null", "shape"});
}

TEST(Safetensors, FieldsThatAreWrong) {
  const auto entry = [](const std::string& fields) {
    return container("{\"a\":{" + fields + "}}");
  };
  refused(entry(R"("dtype":"F99","shape":[0],"data_offsets":[0,0])"), {"'a'", "'F99'"});
  refused(entry(R"("dtype":7,"shape":[0],"data_offsets":[0,0])"), {"'a'", "dtype"});
  refused(entry(R"("shape":[0],"data_offsets":[0,0])"), {"'a'", "no dtype"});
  refused(entry(R"("dtype":"F32","data_offsets":[0,0])"), {"'a'", "no shape"});
  refused(entry(R"("dtype":"F32","shape":[0])"), {"'a'", "no data_offsets"});
  refused(entry(R"("dtype":"F32","dtype":"F32","shape":[0],"data_offsets":[0,0])"),
          {"'a'", "'dtype' twice"});
  refused(entry(R"("dtype":"F32","shape":[0],"data_offsets":[0,0],"extra":1)"),
          {"'a'", "unknown field 'extra'"});
}

TEST(Safetensors, NamesAndMetadata) {
  const std::string one = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  refused(container("{" + one + "," + one + "}"), {"'a' appears twice"});
  refused(container(R"({"__metadata__":{},"__metadata__":{}})"), {"'__metadata__' appears twice"});
  refused(container(R"({"__metadata__":{"k":"1","k":"2"}})"), {"metadata 'k' appears twice"});
  refused(container(R"({"__metadata__":{"k":1}})"), {"metadata 'k'", "1", "a text"});
  refused(container(R"({"__metadata__":{"k":{}}})"), {"metadata 'k'", "an object"});
  refused(container(R"({"__metadata__":[]})"), {"'__metadata__'", "an array"});
  refused(container(R"({"a":"U8"})"), {"'a'", "right: an object"});
  // A name cannot break the message's line or colour the terminal.
  refused(container("{\"a\\n\\u001b[31m\":1}"), {"'a\\x0a\\x1b[31m'"});
}

TEST(Safetensors, HeadersThatAreNotJson) {
  refused(container(""), {"does not begin with '{'"});
  refused(container("[]"), {"does not begin with '{'"});
  refused(container(" {}"), {"does not begin with '{'"});
  refused(container("\xef\xbb\xbf{}"), {"does not begin with '{'"});
  refused(container("{"), {"not JSON at its byte"});
  refused(container("{}{}"), {"not JSON at its byte"});
  refused(container("{\"\xff\":1}"), {"not JSON at its byte"});
  refused(container(kOne + std::string(1, '\0'), "abcd"), {"a zero byte at 55"});
  refused(container(std::string(200000, '[')), {"does not begin with '{'"});
  refused(container("{\"a\":" + std::string(200000, '[')), {"'a'", "an array"});
  std::string objects;
  for (int i = 0; i < 200000; ++i) objects += "{\"a\":";
  refused(container(objects), {"'a'", "unknown field 'a'"});
}

// Cut at any byte, or with any byte more, the file is refused.
TEST(Safetensors, EveryTruncation) {
  const std::string good = container(kOne, "abcd");
  EXPECT_NO_THROW(parse(good));
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_THROW(parse(good.substr(0, length)), Error) << length;
  }
  refused(good + "e", {"1 bytes after the last tensor"});
}

TEST(Safetensors, HostileHeadersTakeLittleMemory) {
  const auto peak_kib = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  std::string shape = R"({"a":{"dtype":"F32","shape":[)";
  for (int i = 0; i < 5'000'000; ++i) shape += "1,";
  const std::string bytes = container(shape + R"(1],"data_offsets":[0,4]}})", "abcd");
  const auto before = peak_kib();
  refused(bytes, {"more than 8 dimensions"});
  EXPECT_LT(peak_kib() - before, 100 * 1024);
}

}  // namespace
}  // namespace oscar
