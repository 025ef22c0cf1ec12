/* Calibration, artefacts and pages that the caller owns, through the C interface. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capi_test_support.h"
#include "oscar/oscar.h"

enum { kLayers = 2, kQHeads = 4, kKvHeads = 2, kDim = 64, kTokens = 700, kPairs = kDim / 2 };
enum { kWidth = kKvHeads * kDim, kQWidth = kQHeads * kDim, kPages = 12 };

static float inv_freq[kPairs];
static const oscar_model kModel = {kLayers, kQHeads, kKvHeads, kDim, kDim};

/* Rows with a mean, so that there is something to find. */
static float* make_shifted(int64_t count, uint64_t seed, float shift) {
  float* rows = make_rows(count, seed);
  for (int64_t i = 0; i < count; ++i) rows[i] += shift * (float)(i % 7);
  return rows;
}

static oscar_collector* collect(const oscar_rope* rope, int64_t chunk) {
  oscar_collector* collector = NULL;
  EXPECT(oscar_collector_create(1, &collector) == OSCAR_OK);
  int32_t positions[kTokens];
  for (int t = 0; t < kTokens; ++t) positions[t] = t;
  for (int layer = 0; layer < kLayers; ++layer) {
    float* keys = make_shifted(kTokens * kWidth, 10 + (uint64_t)layer, 0.1f);
    float* values = make_shifted(kTokens * kWidth, 20 + (uint64_t)layer, 0.0f);
    float* queries = make_shifted(kTokens * kQWidth, 30 + (uint64_t)layer, 0.1f);
    float* outputs = make_shifted(kTokens * kQWidth, 40 + (uint64_t)layer, 0.0f);
    for (int64_t first = 0; first < kTokens; first += chunk) {
      const int64_t count = kTokens - first < chunk ? kTokens - first : chunk;
      const oscar_layer_rows rows = {sizeof rows,
                                     layer,
                                     kQHeads,
                                     kKvHeads,
                                     kDim,
                                     kDim,
                                     0.125f,
                                     rope,
                                     count,
                                     positions + first,
                                     queries + first * kQWidth,
                                     keys + first * kWidth,
                                     values + first * kWidth,
                                     outputs + first * kQWidth};
      EXPECT(oscar_collector_add(collector, &rows) == OSCAR_OK);
    }
    free(keys);
    free(values);
    free(queries);
    free(outputs);
  }
  return collector;
}

static void test_statistics(void) {
  oscar_collector* collector = collect(NULL, kTokens);
  oscar_head_statistics head;
  EXPECT(oscar_collector_head(collector, 1, 1, &head) == OSCAR_OK);
  EXPECT(head.num_tokens == kTokens && head.num_values == kTokens);
  EXPECT(head.num_queries == kTokens * (kQHeads / kKvHeads));
  /* Layer 1, KV head 1, in double from the same rows: its keys, and its query heads 2 and 3. */
  float* keys = make_shifted(kTokens * kWidth, 11, 0.1f);
  float* queries = make_shifted(kTokens * kQWidth, 31, 0.1f);
  double key_sum = 0, covariance = 0;
  for (int t = 0; t < kTokens; ++t) {
    key_sum += keys[t * kWidth + kDim + 3];
    for (int q = 2; q < 4; ++q) {
      const float* row = queries + t * kQWidth + q * kDim;
      covariance += (double)row[3] * row[5];
    }
  }
  EXPECT(fabs(head.key_sum[3] - key_sum) < 1e-9);
  /* Products are added in float over 256 rows at most: 256 · 2^-24 of Σ|qᵢqⱼ|, below 2 a row. */
  EXPECT(fabs(head.query_covariance[3 * kDim + 5] - covariance) <
         2.0 * 2 * kTokens * 256 / (double)(1 << 24));
  free(keys);
  free(queries);

  EXPECT_REFUSED(oscar_collector_head(collector, 7, 0, &head), OSCAR_NOT_FOUND, "layer 7");
  EXPECT_REFUSED(oscar_collector_head(collector, 0, kKvHeads, &head), OSCAR_INVALID_ARGUMENT,
                 "kv_head is 2");
  oscar_layer_rows rows = {sizeof rows, 0, 5, kKvHeads, kDim, kDim, 1, NULL, 0, 0, 0, 0, 0, 0};
  EXPECT_REFUSED(oscar_collector_add(collector, &rows), OSCAR_INVALID_ARGUMENT, "num_q_heads is 5");
  rows.num_q_heads = 8;
  EXPECT_REFUSED(oscar_collector_add(collector, &rows), OSCAR_MISMATCH, "num_q_heads was 4");
  rows.num_q_heads = kQHeads;
  rows.num_tokens = 1;
  EXPECT_REFUSED(oscar_collector_add(collector, &rows), OSCAR_INVALID_ARGUMENT, "rows.positions");
  rows.layer = -1;
  EXPECT_REFUSED(oscar_collector_add(collector, &rows), OSCAR_INVALID_ARGUMENT, "layer is -1");
  rows.struct_bytes = 3;
  EXPECT_REFUSED(oscar_collector_add(collector, &rows), OSCAR_INVALID_ARGUMENT, "struct_bytes");
  EXPECT(oscar_collector_num_non_finite(collector) == 0);
  EXPECT(oscar_collector_num_non_finite(NULL) == -1);
  oscar_collector_free(collector);
  oscar_collector_free(NULL);
}

static oscar_artefact* fit(const oscar_rope* rope, int64_t chunk) {
  oscar_collector* collector = collect(rope, chunk);
  oscar_artefact* artefact = NULL;
  EXPECT(oscar_fit(collector, "oscar-plus", "llama", "abc", 1, &artefact) == OSCAR_OK);
  oscar_artefact* none = NULL;
  EXPECT_REFUSED(oscar_fit(collector, "quarot", "llama", NULL, 1, &none), OSCAR_INVALID_ARGUMENT,
                 "needs no calibration");
  EXPECT_REFUSED(oscar_fit(collector, "oscar", NULL, NULL, 0, &none), OSCAR_INVALID_ARGUMENT,
                 "num_threads is 0");
  EXPECT(none == NULL);
  oscar_collector_free(collector);
  return artefact;
}

/* The same tensors and texts, piece by piece. */
static oscar_artefact* rebuild(const oscar_artefact* artefact, const char* left_out,
                               oscar_status expected) {
  const int64_t num_tensors = oscar_artefact_num_tensors(artefact);
  const int64_t num_texts = oscar_artefact_num_texts(artefact);
  oscar_tensor* tensors = calloc((size_t)num_tensors, sizeof *tensors);
  oscar_text* texts = calloc((size_t)num_texts, sizeof *texts);
  if (tensors == NULL || texts == NULL) exit(2);
  int64_t kept = 0;
  for (int64_t i = 0; i < num_tensors; ++i) {
    EXPECT(oscar_artefact_tensor(artefact, i, &tensors[kept]) == OSCAR_OK);
    if (left_out == NULL || strcmp(tensors[kept].name, left_out) != 0) ++kept;
  }
  for (int64_t i = 0; i < num_texts; ++i)
    EXPECT(oscar_artefact_text(artefact, i, &texts[i]) == OSCAR_OK);
  oscar_artefact* out = NULL;
  EXPECT(oscar_artefact_create(tensors, kept, texts, num_texts, &out) == expected);
  if (kept > 0 && expected == OSCAR_OK) {
    oscar_artefact* twice = NULL;
    tensors[kept - 1] = tensors[0];
    EXPECT_REFUSED(oscar_artefact_create(tensors, kept, texts, num_texts, &twice),
                   OSCAR_INVALID_ARGUMENT, "again");
  }
  free(tensors);
  free(texts);
  return out;
}

static int same_files(const char* a, const char* b) {
  FILE* first = fopen(a, "rb");
  FILE* second = fopen(b, "rb");
  if (first == NULL || second == NULL) return 0;
  int x = 0, y = 0;
  do {
    x = fgetc(first);
    y = fgetc(second);
  } while (x == y && x != EOF);
  fclose(first);
  fclose(second);
  return x == y;
}

static void test_artefact(const char* path, const char* other_path) {
  const oscar_rope rope = {OSCAR_ROPE_HALF_SPLIT, kPairs, inv_freq, 1.0f};
  oscar_artefact* artefact = fit(&rope, kTokens);
  oscar_artefact* loaded = NULL;
  EXPECT(oscar_artefact_save(artefact, path) == OSCAR_OK);
  EXPECT(oscar_artefact_load(path, &loaded) == OSCAR_OK);
  oscar_artefact* rebuilt = rebuild(loaded, NULL, OSCAR_OK);
  EXPECT(oscar_artefact_save(rebuilt, other_path) == OSCAR_OK);
  EXPECT(same_files(path, other_path));
  EXPECT(rebuild(loaded, "layers.1.v_transform", OSCAR_CORRUPT) == NULL);
  EXPECT(strstr(oscar_last_error(), "layers.1.v_transform") != NULL);
  EXPECT(rebuild(loaded, "ropes.0.inv_freq", OSCAR_CORRUPT) == NULL);

  EXPECT(oscar_artefact_check_model(loaded, "llama", &kModel, "abc") == OSCAR_OK);
  EXPECT(oscar_artefact_check_model(loaded, "llama", &kModel, NULL) == OSCAR_OK);
  EXPECT_REFUSED(oscar_artefact_check_model(loaded, "llama", &kModel, "abd"), OSCAR_MISMATCH,
                 "weights_hash");
  EXPECT_REFUSED(oscar_artefact_check_model(loaded, "qwen2", &kModel, ""), OSCAR_MISMATCH, "qwen2");
  oscar_model other = kModel;
  other.num_kv_heads = 4;
  EXPECT_REFUSED(oscar_artefact_check_model(loaded, "llama", &other, ""), OSCAR_MISMATCH,
                 "num_kv_heads 2");
  oscar_tensor tensor;
  oscar_text text;
  EXPECT_REFUSED(oscar_artefact_tensor(loaded, -1, &tensor), OSCAR_INVALID_ARGUMENT, "index is -1");
  EXPECT_REFUSED(oscar_artefact_text(loaded, 99, &text), OSCAR_INVALID_ARGUMENT, "index is 99");
  EXPECT_REFUSED(oscar_artefact_save(loaded, "no/such/folder/a.safetensors"), OSCAR_NOT_FOUND,
                 "no/such/folder");
  /* A file whose mean key is from before RoPE can be opened and described. */
  oscar_method* method = NULL;
  oscar_method_info info;
  EXPECT(oscar_method_open(path, &kModel, &method) == OSCAR_OK);
  EXPECT(oscar_method_describe(method, &info) == OSCAR_OK);
  EXPECT(strcmp(info.name, "oscar-plus") == 0 && fabs(info.bits_per_value - 2.25) < 1e-9);
  oscar_method_free(method);
  oscar_artefact_free(rebuilt);
  oscar_artefact_free(loaded);
  oscar_artefact_free(artefact);
  oscar_artefact_free(NULL);
  EXPECT(oscar_artefact_num_tensors(NULL) == -1 && oscar_artefact_num_texts(NULL) == -1);

  /* A bare tensor of a shape that cannot be counted. */
  oscar_tensor huge = {"errors", inv_freq, 2, {INT64_MAX, INT64_MAX, 0, 0}};
  oscar_artefact* none = NULL;
  EXPECT_REFUSED(oscar_artefact_create(&huge, 1, NULL, 0, &none), OSCAR_INVALID_ARGUMENT, "errors");
  char hex[33];
  EXPECT(oscar_hash("", 0, hex) == OSCAR_OK);
  EXPECT(strcmp(hex, "99aa06d3014798d86001c324468d497f") == 0); /* xxh128sum of nothing */
}

/* The bytes do not depend on how the text was cut beyond the rounding of the covariances; fitted
 * with another RoPE the mean key is another. */
static void test_rope(void) {
  const oscar_rope rope = {OSCAR_ROPE_INTERLEAVED, kPairs, inv_freq, 1.0f};
  const oscar_rope none = {2, kPairs, inv_freq, 1.0f};
  const oscar_rope large = {OSCAR_ROPE_HALF_SPLIT, kPairs + 1, inv_freq, 1.0f};
  oscar_collector* collector = collect(&rope, 300);
  oscar_collector* half_split = collect(NULL, 300);
  oscar_head_statistics a, b;
  EXPECT(oscar_collector_head(collector, 0, 0, &a) == OSCAR_OK);
  EXPECT(oscar_collector_head(half_split, 0, 0, &b) == OSCAR_OK);
  double a_norm = 0, b_norm = 0, difference = 0;
  for (int i = 0; i < kDim; ++i) {
    a_norm += a.key_square_sum[i];
    b_norm += b.key_square_sum[i];
    difference += fabs(a.key_sum[i] - b.key_sum[i]);
  }
  EXPECT(fabs(a_norm - b_norm) < 1e-4 * b_norm); /* a rotation keeps norms */
  EXPECT(difference > 1);
  oscar_layer_rows rows = {sizeof rows, 0, kQHeads, kKvHeads, kDim, kDim, 1,
                           &none,       0, 0,       0,        0,    0,    0};
  EXPECT_REFUSED(oscar_collector_add(collector, &rows), OSCAR_INVALID_ARGUMENT, "pairing is 2");
  rows.rope = &large;
  EXPECT_REFUSED(oscar_collector_add(collector, &rows), OSCAR_INVALID_ARGUMENT, "num_pairs is 33");
  rows.rope = NULL;
  EXPECT_REFUSED(oscar_collector_add(collector, &rows), OSCAR_MISMATCH, "RoPE changes");
  oscar_collector_free(collector);
  oscar_collector_free(half_split);
}

/* Pages of the caller's hold the bytes of the row functions, and attention over them is that of the
 * library's own cache, bit for bit. */
static void test_pages(void) {
  oscar_method* method = NULL;
  oscar_codec* codec = NULL;
  oscar_cache* cache = NULL;
  EXPECT(oscar_method_open("quarot:k3v2,sink=0,recent=0", &kModel, &method) == OSCAR_OK);
  EXPECT(oscar_codec_create(method, 0, 4000, &codec) == OSCAR_OK);
  oscar_cache_options options;
  EXPECT(oscar_cache_options_init(method, &options) == OSCAR_OK);
  options.max_append_tokens = kTokens;
  EXPECT(oscar_cache_create(method, &options, &cache) == OSCAR_OK);
  oscar_plane k, v;
  EXPECT(oscar_codec_key_plane(codec, &k) == OSCAR_OK);
  EXPECT(oscar_codec_value_plane(codec, &v) == OSCAR_OK);
  EXPECT(k.bits == 3 && k.code_row_bytes == 24 && k.scales_offset == 1536 && k.plane_bytes == 1792);
  EXPECT(v.bits == 2 && v.has_zero_points == 1 && v.zeros_offset == 1152 && v.plane_bytes == 1280);
  EXPECT(oscar_codec_page_bytes(codec) == kKvHeads * (1792 + 1280));
  EXPECT(oscar_codec_page_bytes(NULL) == 0);

  float* keys = make_rows(kTokens * kWidth, 1);
  float* values = make_rows(kTokens * kWidth, 2);
  uint8_t* pages = calloc(kPages, oscar_codec_page_bytes(codec));
  if (pages == NULL) exit(2);
  static int32_t positions[kTokens], block_table[kPages];
  static int64_t slots[kTokens];
  for (int page = 0; page < kPages; ++page) block_table[page] = kPages - 1 - page;
  for (int t = 0; t < kTokens; ++t) {
    positions[t] = t;
    slots[t] = (int64_t)block_table[t / 64] * 64 + t % 64;
  }
  EXPECT(oscar_encode_pages(codec, keys, values, positions, slots, kTokens, 1, pages, kPages) ==
         OSCAR_OK);

  int32_t sequence = -1;
  EXPECT(oscar_sequence_create(cache, &sequence) == OSCAR_OK);
  EXPECT(oscar_append_begin(cache, sequence, kTokens) == OSCAR_OK);
  for (int layer = 0; layer < kLayers; ++layer)
    EXPECT(oscar_append_layer(cache, sequence, layer, keys, values) == OSCAR_OK);
  enum { kQueries = 3 };
  float* q = make_rows(kQueries * kQWidth, 3);
  static float out[2][kQueries * kQWidth], lse[2][kQueries * kQHeads];
  oscar_queries expected = {sizeof expected, q, out[0], kQueries, 0.125f, 0, 100, NULL, lse[0]};
  EXPECT(oscar_attend(cache, sequence, 0, &expected) == OSCAR_OK);
  const int32_t query_positions[kQueries] = {kTokens - 3, kTokens - 2, kTokens - 1};
  oscar_page_queries queries = {.struct_bytes = sizeof queries,
                                .q = q,
                                .out = out[1],
                                .lse = lse[1],
                                .query_positions = query_positions,
                                .num_queries = kQueries,
                                .num_q_heads = kQHeads,
                                .pages = pages,
                                .num_pages = kPages,
                                .block_table = block_table,
                                .num_tokens = kTokens,
                                .scale = 0.125f,
                                .sliding_window = 100};
  EXPECT(oscar_attend_pages(codec, &queries) == OSCAR_OK);
  EXPECT(memcmp(out[0], out[1], sizeof out[0]) == 0);
  EXPECT(memcmp(lse[0], lse[1], sizeof lse[0]) == 0);

  block_table[2] = kPages;
  EXPECT_REFUSED(oscar_attend_pages(codec, &queries), OSCAR_INVALID_ARGUMENT, "block_table[2]");
  block_table[2] = 0;
  queries.num_q_heads = 5;
  EXPECT_REFUSED(oscar_attend_pages(codec, &queries), OSCAR_INVALID_ARGUMENT, "num_q_heads is 5");
  slots[4] = kPages * 64;
  EXPECT_REFUSED(
      oscar_encode_pages(codec, keys, values, positions, slots, kTokens, 1, pages, kPages),
      OSCAR_INVALID_ARGUMENT, "slots[4] is 768");
  slots[4] = -1;
  keys[0] = NAN;
  EXPECT(oscar_encode_pages(codec, keys, values, positions, slots, kTokens, 1, pages, kPages) ==
         OSCAR_NOT_FINITE);
  free(q);
  free(pages);
  free(keys);
  free(values);
  oscar_cache_free(cache);
  oscar_codec_free(codec);
  oscar_method_free(method);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    printf("usage: capi_calibration_test FILE FILE (written)\n");
    return 2;
  }
  for (int f = 0; f < kPairs; ++f) inv_freq[f] = powf(10000.0f, -(float)f / kPairs);
  test_statistics();
  test_artefact(argv[1], argv[2]);
  test_rope();
  test_pages();
  printf("%d failures\n", num_failures);
  return num_failures == 0 ? 0 : 1;
}
