// Heads and answers, whole, cut short and wrong.
#include "http_message.h"

#include <gtest/gtest.h>

#include <random>

namespace oscar::tool {
namespace {

constexpr const char* kHead =
    "POST /slots/3?action=save&x=a%20b+c HTTP/1.1\r\nHost: here\r\nContent-Length:  12 \r\n"
    "Connection: keep-alive\r\nX-Api-Key: k\r\n\r\n";

TEST(HttpMessage, ReadsARequest) {
  const auto request = parse_request(kHead);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->method, "POST");
  EXPECT_EQ(request->path(), "/slots/3");
  EXPECT_EQ(request->header("x-api-key"), "k");
  EXPECT_EQ(request->content_length(), 12u);
}

TEST(HttpMessage, DecodesPaths) {
  const auto request = parse_request("GET /%73lots/%zz%4 HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->path(), "/slots/%zz%4");
  const auto with_fragment = parse_request("GET /a?b=c#d?b=e HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(with_fragment);
  EXPECT_EQ(with_fragment->path(), "/a");
  EXPECT_EQ(parse_request("GET /a#b?c HTTP/1.1\r\n\r\n")->path(), "/a");
}

TEST(HttpMessage, RefusesWhatIsNoRequest) {
  for (const char* head : {"", "\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/2\r\n\r\n", "GET /\r\n\r\n",
                           "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\n"}) {
    EXPECT_FALSE(parse_request(head)) << head;
  }
}

TEST(HttpMessage, FindsLinesThatEndInLfAlone) {
  for (const char* head : {"", "GET", "GET / HTTP/1.1\r\n", kHead}) {
    EXPECT_FALSE(has_bare_line_feed(head)) << head;
  }
  for (const char* head : {"\n", "GET / HTTP/1.1\n\n", "GET / HTTP/1.1\r\nHost: x\n\r\n"}) {
    EXPECT_TRUE(has_bare_line_feed(head)) << head;
  }
}

TEST(HttpMessage, LengthsOfBodies) {
  const auto length = [](const std::string& header) {
    return parse_request("POST / HTTP/1.1\r\n" + header + "\r\n\r\n")->content_length();
  };
  EXPECT_EQ(length("A: b"), 0u);
  EXPECT_EQ(length("Content-Length: 18446744073709551615"), UINT64_MAX);
  EXPECT_FALSE(length("Content-Length: 18446744073709551616"));
  EXPECT_FALSE(length("Content-Length: -1"));
  EXPECT_FALSE(length("Content-Length: 1x"));
  EXPECT_FALSE(length("Transfer-Encoding: chunked"));
}

TEST(HttpMessage, AsksToCloseTheConnection) {
  EXPECT_EQ(with_connection_close(kHead),
            "POST /slots/3?action=save&x=a%20b+c HTTP/1.1\r\nHost: here\r\nContent-Length:  12 \r\n"
            "X-Api-Key: k\r\nConnection: close\r\n\r\n");
}

TEST(HttpMessage, ReadsAnswers) {
  const auto plain = parse_response("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}rest");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->status, 200);
  EXPECT_EQ(plain->body, "{}");
  const auto chunked = parse_response(
      "HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n");
  ASSERT_TRUE(chunked);
  EXPECT_EQ(chunked->status, 400);
  EXPECT_EQ(chunked->body, "abcd");
  EXPECT_EQ(parse_response("HTTP/1.1 503 X\r\n\r\nto the end")->body, "to the end");
}

TEST(HttpMessage, RefusesAnswersThatAreCutShort) {
  const std::string whole =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  for (std::size_t size = 0; size < whole.size() - 4; ++size) {
    EXPECT_FALSE(parse_response(whole.substr(0, size))) << size;
  }
  EXPECT_FALSE(parse_response("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"));
}

TEST(HttpMessage, AnyBytesAreRead) {
  std::mt19937 generator(1);
  const std::string seed = std::string(kHead) + "HTTP/1.1 200 OK\r\n:\r\n\r\n5\r\n";
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = seed.substr(generator() % seed.size());
    for (int change = 0; change < 4; ++change) {
      bytes[generator() % bytes.size()] = static_cast<char>(generator());
    }
    if (const auto request = parse_request(bytes)) {
      request->path();
      request->content_length();
    }
    parse_response(bytes);
    with_connection_close(bytes);
  }
}

TEST(HttpMessage, ErrorsAreLlamaServers) {
  const auto response =
      parse_response(error_response(400, "invalid_request_error", "a \"b\" \xff"));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 400);
  EXPECT_EQ(response->body,
            "{\"error\":{\"code\":400,\"message\":\"a \\\"b\\\" \xef\xbf\xbd\",\"type\":"
            "\"invalid_request_error\"}}");
}

}  // namespace
}  // namespace oscar::tool
