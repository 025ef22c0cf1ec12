#include "format/safetensors_header.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "format/safetensors.h"

namespace oscar {
namespace {

// Receives the JSON events and accepts only the nesting that the format has, so depth is at most 3.
class HeaderHandler {
 public:
  HeaderHandler(const std::string& name, SafetensorsHeader* header) : name_(name), out_(header) {}

  bool null() { unexpected("null"); }
  bool boolean(bool) { unexpected("a boolean"); }
  bool number_integer(std::int64_t value) { unexpected(std::to_string(value)); }
  bool number_float(double, const std::string& text) {
    unexpected("the number " + in_quotes(text));
  }
  bool binary(nlohmann::json::binary_t&) { unexpected("binary data"); }

  bool number_unsigned(std::uint64_t value) {
    if (state_ == State::kShape) {
      if (tensor_.shape.size() == kMaxTensorRank) {
        refuse("has more than " + std::to_string(kMaxTensorRank) + " dimensions");
      }
      tensor_.shape.push_back(value);
    } else if (state_ == State::kOffsets) {
      if (num_offsets_ == 2) refuse("has more than two data_offsets");
      (num_offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
    } else {
      unexpected(std::to_string(value));
    }
    return true;
  }

  bool string(std::string& text) {
    if (state_ == State::kMetadata) {
      out_->metadata[key_] = std::move(text);
    } else if (state_ == State::kTensor && field_ == "dtype") {
      const auto dtype = dtype_from_name(text);
      if (!dtype) refuse("has the unknown dtype " + in_quotes(text));
      tensor_.dtype = *dtype;
      has_dtype_ = true;
    } else {
      unexpected("the text " + in_quotes(text));
    }
    return true;
  }

  bool start_object(std::size_t) {
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kTop) {
      if (key_ == kSafetensorsMetadataKey) {
        state_ = State::kMetadata;
      } else {
        state_ = State::kTensor;
        tensor_ = {};
        field_.clear();
        has_dtype_ = has_shape_ = has_offsets_ = false;
      }
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& key) {
    if (state_ == State::kTop) {
      if (out_->tensors.count(key) != 0 || (key == kSafetensorsMetadataKey && has_metadata_)) {
        fail("the name " + in_quotes(key) + " appears twice");
      }
      has_metadata_ = has_metadata_ || key == kSafetensorsMetadataKey;
      key_ = std::move(key);
    } else if (state_ == State::kMetadata) {
      if (out_->metadata.count(key) != 0) fail("metadata " + in_quotes(key) + " appears twice");
      key_ = std::move(key);
    } else {
      const bool twice = (key == "dtype" && has_dtype_) || (key == "shape" && has_shape_) ||
                         (key == "data_offsets" && has_offsets_);
      if (twice) refuse("has the field " + in_quotes(key) + " twice");
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        refuse("has the unknown field " + in_quotes(key));
      }
      field_ = std::move(key);
    }
    return true;
  }

  bool end_object() {
    if (state_ == State::kTensor) {
      if (!has_dtype_) refuse("has no dtype");
      if (!has_shape_) refuse("has no shape");
      if (!has_offsets_) refuse("has no data_offsets");
      out_->tensors.emplace(std::move(key_), std::move(tensor_));
    }
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

  bool start_array(std::size_t) {
    if (state_ == State::kTensor && field_ == "shape") {
      state_ = State::kShape;
    } else if (state_ == State::kTensor && field_ == "data_offsets") {
      state_ = State::kOffsets;
      num_offsets_ = 0;
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() {
    if (state_ == State::kShape) {
      has_shape_ = true;
    } else {
      if (num_offsets_ != 2) {
        refuse("has " + std::to_string(num_offsets_) + " data_offsets; right: two");
      }
      has_offsets_ = true;
    }
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    fail("the header is not JSON at its byte " + std::to_string(position));
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kCorrupt, in_quotes(name_) + ": " + what);
  }

  [[noreturn]] void refuse(const std::string& what) const {
    fail("tensor " + in_quotes(key_) + " " + what);
  }

  [[noreturn]] void unexpected(const std::string& what) const {
    switch (state_) {
      case State::kStart:
      case State::kEnd: fail("the header is " + what + "; right: one JSON object");
      case State::kTop: fail("the entry " + in_quotes(key_) + " is " + what + "; right: an object");
      case State::kMetadata:
        fail("metadata " + in_quotes(key_) + " is " + what + "; right: a text");
      case State::kTensor: refuse("has " + what + " for its " + field_);
      case State::kShape: refuse("has " + what + " in its shape; right: whole numbers from 0");
      case State::kOffsets:
        refuse("has " + what + " in its data_offsets; right: whole numbers from 0");
    }
    fail("the header is malformed");
  }

  const std::string& name_;
  SafetensorsHeader* out_;
  State state_ = State::kStart;
  std::string key_;    // of the tensor or metadata entry being read
  std::string field_;  // of the tensor being read
  TensorHeader tensor_;
  int num_offsets_ = 0;
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& name) {
  // The JSON library takes a zero byte for the end of input and skips a byte order mark; both would
  // hide bytes.
  if (json.empty() || json.front() != '{') {
    throw Error(ErrorCode::kCorrupt, in_quotes(name) + ": the header does not begin with '{'");
  }
  if (const auto zero = json.find('\0'); zero != std::string_view::npos) {
    throw Error(ErrorCode::kCorrupt,
                in_quotes(name) + ": the header holds a zero byte at " + std::to_string(zero));
  }
  SafetensorsHeader header;
  HeaderHandler handler(name, &header);
  nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  return header;
}

}  // namespace oscar
