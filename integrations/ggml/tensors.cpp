#include "tensors.h"

#include <algorithm>
#include <charconv>

namespace oscar::ggml_plugin {
namespace {

constexpr std::string_view kPrefix = "cache_";

// The layer number after "_l" at the end, and what stands before it.
std::optional<int> split_layer(std::string_view* name) {
  const std::size_t mark = name->rfind("_l");
  if (mark == std::string_view::npos) return std::nullopt;
  const std::string_view digits = name->substr(mark + 2);
  int layer = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  if (status != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  *name = name->substr(0, mark);
  return layer;
}

}  // namespace

std::optional<CacheName> parse_cache_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const std::optional<int> layer = split_layer(&name);
  if (!layer || name.empty() || (name.back() != 'k' && name.back() != 'v')) return std::nullopt;
  return CacheName{std::string(name.substr(0, name.size() - 1)),
                   name.back() == 'k' ? Side::kKeys : Side::kValues, *layer};
}

bool is_recurrent_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  return split_layer(&name) && !name.empty() && (name.back() == 'r' || name.back() == 's');
}

std::optional<RowRange> rows_of(const ggml_tensor* tensor, std::size_t offset, std::size_t size) {
  const ggml_tensor* root = root_of(tensor);
  const std::size_t row_bytes = root->nb[1];
  const std::size_t begin = tensor->view_offs + offset;
  if (begin % row_bytes != 0 || size % row_bytes != 0) return std::nullopt;
  const RowRange rows{static_cast<std::int64_t>(begin / row_bytes),
                      static_cast<std::int64_t>(size / row_bytes)};
  if (rows.first + rows.count > root->ne[1] * root->ne[2]) return std::nullopt;
  return rows;
}

RowRange rows_touched(const ggml_tensor* tensor, std::size_t offset, std::size_t size) {
  const ggml_tensor* root = root_of(tensor);
  const std::size_t row_bytes = root->nb[1], begin = tensor->view_offs + offset;
  const auto num_rows = static_cast<std::size_t>(root->ne[1] * root->ne[2]);
  const std::size_t first = std::min(num_rows, begin / row_bytes);
  const std::size_t last = std::min(num_rows, (begin + size + row_bytes - 1) / row_bytes);
  return {static_cast<std::int64_t>(first), static_cast<std::int64_t>(last - first)};
}

std::int64_t row_index(const ggml_tensor* indices, std::int64_t i) {
  const char* const at = static_cast<const char*>(indices->data) + i * indices->nb[0];
  return indices->type == GGML_TYPE_I64 ? *reinterpret_cast<const std::int64_t*>(at)
                                        : *reinterpret_cast<const std::int32_t*>(at);
}

}  // namespace oscar::ggml_plugin
