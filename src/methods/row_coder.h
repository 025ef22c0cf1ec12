// How a method whose bytes do not fit the packed planes (format/plane_layout.h) stores the rows of
// one side of one layer: a fixed number of tokens at a time, in a layout of its own.
#pragma once

#include <cstdint>

#include "format/quant_spec.h"

namespace oscar::methods {

// A row is [num_kv_heads][head_dim], after the method's rotation. Immutable after construction and
// thread-safe. Bytes depend on the group's rows and positions alone, and on nothing else.
class RowCoder {
 public:
  RowCoder(int num_kv_heads, int head_dim, int group_tokens)
      : num_kv_heads_(num_kv_heads), head_dim_(head_dim), group_tokens_(group_tokens) {}
  virtual ~RowCoder() = default;
  RowCoder(const RowCoder&) = delete;
  RowCoder& operator=(const RowCoder&) = delete;

  int num_kv_heads() const { return num_kv_heads_; }
  int head_dim() const { return head_dim_; }
  std::int64_t row_values() const { return std::int64_t{num_kv_heads_} * head_dim_; }
  // Tokens that are coded together; 1: each by itself.
  int group_tokens() const { return group_tokens_; }

  // Room that a group needs at most.
  virtual std::int64_t group_bytes() const = 0;
  // Codes the first `count` tokens of a group (1 to group_tokens). rows: [count][row], finite,
  // magnitudes at most those of BF16; positions: [count]. Returns the bytes that it takes.
  virtual std::int64_t encode(const float* rows, const std::int32_t* positions, int count,
                              std::uint8_t* group) const = 0;
  // Tokens [first, first + count) of a group to rows [count][row]; positions: [count], as they
  // were given to encode.
  virtual void decode(const std::uint8_t* group, const std::int32_t* positions, int first,
                      int count, float* rows) const = 0;

 private:
  int num_kv_heads_, head_dim_, group_tokens_;
};

}  // namespace oscar::methods
