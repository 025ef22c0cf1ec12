#include "cache/cache.h"

#include <algorithm>
#include <string>
#include <vector>

#include "capi/handles.h"
#include "capi/status.h"

namespace oscar::capi {
namespace {

void require_struct(const char* name, std::size_t given, std::size_t right) {
  if (given == right) return;
  throw Error(ErrorCode::kInvalidArgument, std::string(name) + ".struct_bytes is " +
                                               std::to_string(given) + "; this library's is " +
                                               std::to_string(right));
}

oscar_cache_options default_options(const oscar_method& method) {
  const cache::CacheOptions defaults;
  constexpr std::int64_t kDefaultPages = 64;
  return {sizeof(oscar_cache_options), kDefaultPages,        defaults.max_sequences,
          method.sink_tokens,          method.recent_tokens, defaults.max_append_tokens,
          defaults.max_position,       defaults.num_threads};
}

cache::CacheOptions options_of(const oscar_cache_options& given) {
  cache::CacheOptions options;
  options.num_pages = given.num_pages;
  options.max_sequences = given.max_sequences;
  options.sink_tokens = given.sink_tokens;
  options.recent_tokens = given.recent_tokens;
  options.max_append_tokens = given.max_append_tokens;
  options.max_position = given.max_position;
  options.num_threads = given.num_threads;
  return options;
}

}  // namespace
}  // namespace oscar::capi

using oscar::capi::guarded;
using oscar::capi::require_pointer;

extern "C" {

oscar_status oscar_cache_options_init(const oscar_method* method, oscar_cache_options* out) {
  return guarded([&] {
    require_pointer(method, "method");
    require_pointer(out, "out");
    *out = oscar::capi::default_options(*method);
    return OSCAR_OK;
  });
}

oscar_status oscar_cache_create(const oscar_method* method, const oscar_cache_options* options,
                                oscar_cache** out) {
  return guarded([&] {
    require_pointer(method, "method");
    require_pointer(out, "out");
    if (options != nullptr)
      oscar::capi::require_struct("options", options->struct_bytes, sizeof *options);
    const oscar_cache_options chosen =
        options != nullptr ? *options : oscar::capi::default_options(*method);
    *out = new oscar_cache(*method, oscar::capi::options_of(chosen));
    return OSCAR_OK;
  });
}

void oscar_cache_free(oscar_cache* cache) { delete cache; }
uint64_t oscar_cache_bytes(const oscar_cache* cache) {
  return cache == nullptr ? 0 : cache->cache.bytes();
}
int64_t oscar_cache_num_free_pages(const oscar_cache* cache) {
  return cache == nullptr ? -1 : cache->cache.num_free_pages();
}

oscar_status oscar_sequence_create(oscar_cache* cache, int32_t* out) {
  return guarded([&] {
    require_pointer(cache, "cache");
    require_pointer(out, "out");
    *out = cache->cache.create_sequence();
    return OSCAR_OK;
  });
}

oscar_status oscar_sequence_fork(oscar_cache* cache, int32_t sequence, int32_t* out) {
  return guarded([&] {
    require_pointer(cache, "cache");
    require_pointer(out, "out");
    *out = cache->cache.fork(sequence);
    return OSCAR_OK;
  });
}

oscar_status oscar_sequence_free(oscar_cache* cache, int32_t sequence) {
  return guarded([&] {
    require_pointer(cache, "cache");
    cache->cache.free_sequence(sequence);
    return OSCAR_OK;
  });
}

oscar_status oscar_sequence_truncate(oscar_cache* cache, int32_t sequence, int64_t num_tokens) {
  return guarded([&] {
    require_pointer(cache, "cache");
    cache->cache.truncate(sequence, num_tokens);
    return OSCAR_OK;
  });
}

oscar_status oscar_sequence_num_tokens(const oscar_cache* cache, int32_t sequence, int64_t* out) {
  return guarded([&] {
    require_pointer(cache, "cache");
    require_pointer(out, "out");
    *out = cache->cache.num_tokens(sequence);
    return OSCAR_OK;
  });
}

oscar_status oscar_append_begin(oscar_cache* cache, int32_t sequence, int64_t num_tokens) {
  return guarded([&] {
    require_pointer(cache, "cache");
    if (cache->cache.begin_append(sequence, num_tokens)) return OSCAR_OK;
    oscar::capi::set_last_error(
        "cache: " + std::to_string(num_tokens) + " more tokens do not fit in " +
        std::to_string(cache->cache.num_free_pages()) + " free pages of 64");
    return OSCAR_OUT_OF_PAGES;
  });
}

oscar_status oscar_append_layer(oscar_cache* cache, int32_t sequence, int32_t layer,
                                const float* keys, const float* values) {
  return guarded([&] {
    require_pointer(cache, "cache");
    const std::int64_t num_tokens = cache->cache.num_missing_tokens(sequence, layer);
    if (num_tokens > 0) {
      require_pointer(keys, "keys");
      require_pointer(values, "values");
    }
    const oscar::cache::LayerCodec& codec = cache->cache.codec(layer);
    const auto rows = [&](const float* data, int head_dim) {
      return oscar::cache::Rows{data, num_tokens, std::int64_t{codec.num_kv_heads()} * head_dim,
                                head_dim};
    };
    if (cache->cache.append_layer(sequence, layer, rows(keys, codec.k_layout().head_dim),
                                  rows(values, codec.v_layout().head_dim)))
      return OSCAR_OK;
    oscar::capi::set_last_error("layer " + std::to_string(layer) +
                                ": a row held NaN or Inf and was stored as zeros");
    return OSCAR_NOT_FINITE;
  });
}

oscar_status oscar_attend(oscar_cache* cache, int32_t sequence, int32_t layer,
                          const oscar_queries* queries) {
  return guarded([&] {
    require_pointer(cache, "cache");
    require_pointer(queries, "queries");
    oscar::capi::require_struct("queries", queries->struct_bytes, sizeof *queries);
    if (queries->num_queries > 0) {
      require_pointer(queries->q, "queries.q");
      require_pointer(queries->out, "queries.out");
    }
    oscar::attention::SequenceQueries all;
    all.num_q_heads = cache->num_q_heads;
    all.num_queries = queries->num_queries;
    all.q = queries->q;
    all.out = queries->out;
    all.lse = queries->lse;
    all.scale = queries->scale;
    all.soft_cap = queries->soft_cap;
    all.sliding_window = queries->sliding_window;
    all.sinks = queries->sinks;
    all.float_path = cache->force_float;
    cache->attention.attend(cache->cache.view(sequence, layer), all);
    return OSCAR_OK;
  });
}

oscar_status oscar_token_bytes(const oscar_cache* cache, int32_t sequence, int32_t layer,
                               int64_t token, uint8_t* bytes, size_t num_bytes) {
  return guarded([&] {
    require_pointer(cache, "cache");
    require_pointer(bytes, "bytes");
    const std::vector<std::uint8_t> stored = cache->cache.token_bytes(sequence, layer, token);
    if (stored.size() != num_bytes) {
      throw oscar::Error(oscar::ErrorCode::kInvalidArgument,
                         "num_bytes is " + std::to_string(num_bytes) + "; a token of layer " +
                             std::to_string(layer) + " has " + std::to_string(stored.size()));
    }
    std::copy(stored.begin(), stored.end(), bytes);
    return OSCAR_OK;
  });
}

}  // extern "C"
