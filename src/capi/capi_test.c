/* The C interface as a C program uses it: rows, cache, attention, and every kind of refusal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capi_test_support.h"
#include "oscar/oscar.h"

enum { kLayers = 2, kQHeads = 4, kKvHeads = 2, kDim = 64, kTokens = 300, kWidth = kKvHeads * kDim };

static const oscar_model kModel = {kLayers, kQHeads, kKvHeads, kDim, kDim};

static double relative_error(const float* a, const double* b, int count) {
  double error = 0, norm = 0;
  for (int i = 0; i < count; ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return sqrt(error / norm);
}

/* Attention of the last token in double, over rows [kTokens][kKvHeads][kDim]. */
static void reference_attend(const float* q, const float* keys, const float* values, float scale,
                             double* out) {
  static double weights[kTokens];
  for (int head = 0; head < kQHeads; ++head) {
    const int kv_head = head / (kQHeads / kKvHeads);
    double sum = 0;
    for (int t = 0; t < kTokens; ++t) {
      double logit = 0;
      for (int d = 0; d < kDim; ++d)
        logit += (double)q[head * kDim + d] * keys[t * kWidth + kv_head * kDim + d];
      sum += weights[t] = exp(scale * logit);
    }
    for (int d = 0; d < kDim; ++d) {
      double value = 0;
      for (int t = 0; t < kTokens; ++t)
        value += weights[t] / sum * values[t * kWidth + kv_head * kDim + d];
      out[head * kDim + d] = value;
    }
  }
}

static void test_names(void) {
  EXPECT(strlen(oscar_version()) > 0);
  EXPECT(oscar_abi_version() == OSCAR_ABI_VERSION);
  EXPECT(strcmp(oscar_status_name(OSCAR_OUT_OF_PAGES), "OSCAR_OUT_OF_PAGES") == 0);
  EXPECT(strcmp(oscar_status_name((oscar_status)99), "unknown status") == 0);
  EXPECT(oscar_kernels() != NULL);
}

static void test_method(void) {
  oscar_method* method = NULL;
  oscar_method_info info;
  EXPECT(oscar_method_open("quarot:k3v2,sink=8,recent=16", &kModel, &method) == OSCAR_OK);
  EXPECT(oscar_method_describe(method, &info) == OSCAR_OK);
  EXPECT(strcmp(info.name, "quarot") == 0);
  EXPECT(info.model.num_layers == kLayers && info.model.head_dim_v == kDim);
  EXPECT(info.k_bits == 3 && info.v_bits == 2);
  EXPECT(info.sink_tokens == 8 && info.recent_tokens == 16);
  /* Codes of 3 and 2 bits, a scale and a zero point of 16 bits for each 64. */
  EXPECT(fabs(info.bits_per_value - 3.0) < 1e-9);
  oscar_method_free(method);
  oscar_method_free(NULL);

  method = NULL;
  EXPECT_REFUSED(oscar_method_open("quarot", NULL, &method), OSCAR_INVALID_ARGUMENT,
                 "model is NULL");
  EXPECT_REFUSED(oscar_method_open(NULL, &kModel, &method), OSCAR_INVALID_ARGUMENT, "kv is NULL");
  EXPECT_REFUSED(oscar_method_open("f16", &kModel, &method), OSCAR_INVALID_ARGUMENT, "f16");
  EXPECT_REFUSED(oscar_method_open("quarot:k9v2", &kModel, &method), OSCAR_INVALID_ARGUMENT,
                 "k9v2");
  EXPECT(oscar_method_open("no-such-file.safetensors", &kModel, &method) != OSCAR_OK);
  EXPECT(strstr(oscar_last_error(), "no-such-file.safetensors") != NULL);
  const oscar_model odd_heads = {kLayers, 5, kKvHeads, kDim, kDim};
  EXPECT_REFUSED(oscar_method_open("quarot", &odd_heads, &method), OSCAR_INVALID_ARGUMENT,
                 "num_q_heads is 5");
  EXPECT(method == NULL);
}

static void test_rows(const float* keys, const float* values) {
  static const char* const specs[] = {"naive:k16v16", "quarot:k4v4", "quarot"};
  /* 16 bits round to 2^-9; 4 and 2 bits of a Gaussian lose about a hundredth and a tenth of the
   * energy. */
  static const double most[] = {0.004, 0.15, 0.5};
  for (int i = 0; i < 3; ++i) {
    oscar_method* method = NULL;
    oscar_codec* codec = NULL;
    EXPECT(oscar_method_open(specs[i], &kModel, &method) == OSCAR_OK);
    EXPECT(oscar_codec_create(method, 1, 1000, &codec) == OSCAR_OK);
    oscar_method_free(method);
    int32_t positions[kTokens];
    for (int t = 0; t < kTokens; ++t) positions[t] = t;
    const size_t row_bytes = oscar_codec_key_bytes(codec);
    uint8_t* bytes = malloc(row_bytes * kTokens);
    float* decoded = malloc(sizeof(float) * kTokens * kWidth);
    double* truth = malloc(sizeof(double) * kTokens * kWidth);
    if (bytes == NULL || decoded == NULL || truth == NULL) exit(2);
    EXPECT(oscar_codec_value_bytes(codec) == row_bytes);
    EXPECT(oscar_encode_keys(codec, keys, positions, kTokens, bytes) == OSCAR_OK);
    EXPECT(oscar_decode_keys(codec, bytes, positions, kTokens, decoded) == OSCAR_OK);
    for (int j = 0; j < kTokens * kWidth; ++j) truth[j] = keys[j];
    EXPECT(relative_error(decoded, truth, kTokens * kWidth) < most[i]);
    EXPECT(oscar_encode_values(codec, values, kTokens, bytes) == OSCAR_OK);
    EXPECT(oscar_decode_values(codec, bytes, kTokens, decoded) == OSCAR_OK);
    for (int j = 0; j < kTokens * kWidth; ++j) truth[j] = values[j];
    EXPECT(relative_error(decoded, truth, kTokens * kWidth) < most[i]);

    positions[1] = 1001;
    EXPECT_REFUSED(oscar_encode_keys(codec, keys, positions, 2, bytes), OSCAR_INVALID_ARGUMENT,
                   "positions[1] is 1001");
    float bad[kWidth] = {0};
    bad[3] = NAN;
    EXPECT(oscar_encode_values(codec, bad, 1, bytes) == OSCAR_NOT_FINITE);
    EXPECT(oscar_encode_values(codec, bad, -1, bytes) == OSCAR_INVALID_ARGUMENT);
    free(truth);
    free(decoded);
    free(bytes);
    oscar_codec_free(codec);
  }
  oscar_codec_free(NULL);
  EXPECT(oscar_codec_key_bytes(NULL) == 0);
}

/* Appends tokens until the sequence has kTokens; the rows of both layers are the same. */
static void fill(oscar_cache* cache, int32_t sequence, const float* keys, const float* values,
                 int64_t chunk) {
  int64_t num_tokens = 0;
  EXPECT(oscar_sequence_num_tokens(cache, sequence, &num_tokens) == OSCAR_OK);
  while (num_tokens < kTokens) {
    const int64_t count = kTokens - num_tokens < chunk ? kTokens - num_tokens : chunk;
    EXPECT(oscar_append_begin(cache, sequence, count) == OSCAR_OK);
    for (int layer = 0; layer < kLayers; ++layer) {
      EXPECT(oscar_append_layer(cache, sequence, layer, keys + num_tokens * kWidth,
                                values + num_tokens * kWidth) == OSCAR_OK);
    }
    num_tokens += count;
  }
}

static void test_cache(const float* keys, const float* values) {
  /* Exact: attention is that of the rows rounded to BF16. At 4 bits it is near. */
  static const char* const specs[] = {"naive:k16v16", "quarot:k4v4,sink=16,recent=32",
                                      "quarot:k4v4,sink=16,recent=32,float"};
  static const double most[] = {0.01, 0.2, 0.2};
  float outputs[3][kQHeads * kDim];
  float* q = make_rows(kQHeads * kDim, 3);
  const float scale = 0.125f;
  double truth[kQHeads * kDim];
  reference_attend(q, keys, values, scale, truth);
  for (int i = 0; i < 3; ++i) {
    oscar_method* method = NULL;
    oscar_cache* cache = NULL;
    oscar_cache_options options;
    int32_t sequence = -1, fork = -1, third = -1;
    EXPECT(oscar_method_open(specs[i], &kModel, &method) == OSCAR_OK);
    EXPECT(oscar_cache_options_init(method, &options) == OSCAR_OK);
    options.num_pages = 6;
    options.max_sequences = 2;
    EXPECT(oscar_cache_create(method, &options, &cache) == OSCAR_OK);
    oscar_method_free(method);
    EXPECT(oscar_cache_bytes(cache) > 0);
    EXPECT(oscar_sequence_create(cache, &sequence) == OSCAR_OK);
    fill(cache, sequence, keys, values, 37);
    EXPECT(oscar_cache_num_free_pages(cache) == 1);

    float out[kQHeads * kDim], lse[kQHeads];
    oscar_queries queries = {sizeof queries, q, out, 1, scale, 0, 0, NULL, lse};
    EXPECT(oscar_attend(cache, sequence, 1, &queries) == OSCAR_OK);
    EXPECT(relative_error(out, truth, kQHeads * kDim) < most[i]);
    EXPECT(isfinite(lse[0]));
    memcpy(outputs[i], out, sizeof out);

    /* A fork says the same; refilled after a cut, its bytes are the same. */
    uint8_t bytes[2][2 * kWidth * 4];
    const size_t token_bytes = i == 0 ? 2 * kWidth * 2 : 2 * kKvHeads * (kDim / 2 + 4);
    EXPECT(oscar_sequence_fork(cache, sequence, &fork) == OSCAR_OK);
    float fork_out[kQHeads * kDim];
    queries.out = fork_out;
    EXPECT(oscar_attend(cache, fork, 1, &queries) == OSCAR_OK);
    EXPECT(memcmp(out, fork_out, sizeof out) == 0);
    EXPECT(oscar_sequence_truncate(cache, fork, 290) == OSCAR_OK);
    fill(cache, fork, keys, values, 10);
    for (int token = 0; token < kTokens; ++token) {
      EXPECT(oscar_token_bytes(cache, sequence, 0, token, bytes[0], token_bytes) == OSCAR_OK);
      EXPECT(oscar_token_bytes(cache, fork, 0, token, bytes[1], token_bytes) == OSCAR_OK);
      EXPECT(memcmp(bytes[0], bytes[1], token_bytes) == 0);
    }

    EXPECT_REFUSED(oscar_append_begin(cache, fork, 100), OSCAR_OUT_OF_PAGES, "100 more tokens");
    EXPECT_REFUSED(oscar_sequence_create(cache, &third), OSCAR_UNSUPPORTED, "sequences");
    EXPECT_REFUSED(oscar_attend(cache, 7, 0, &queries), OSCAR_INVALID_ARGUMENT, "sequence is 7");
    EXPECT_REFUSED(oscar_attend(cache, fork, kLayers, &queries), OSCAR_INVALID_ARGUMENT,
                   "layer is 2");
    EXPECT_REFUSED(oscar_attend(cache, fork, 0, NULL), OSCAR_INVALID_ARGUMENT, "queries is NULL");
    EXPECT_REFUSED(oscar_token_bytes(cache, fork, 0, 0, bytes[0], 3), OSCAR_INVALID_ARGUMENT,
                   "num_bytes is 3");
    EXPECT_REFUSED(oscar_sequence_truncate(cache, fork, kTokens + 1), OSCAR_INVALID_ARGUMENT,
                   "301");
    queries.struct_bytes = 1;
    EXPECT_REFUSED(oscar_attend(cache, fork, 0, &queries), OSCAR_INVALID_ARGUMENT,
                   "struct_bytes is 1");
    EXPECT(oscar_sequence_free(cache, sequence) == OSCAR_OK);
    EXPECT(oscar_sequence_free(cache, fork) == OSCAR_OK);
    EXPECT(oscar_cache_num_free_pages(cache) == 6);
    oscar_cache_free(cache);
  }
  oscar_cache_free(NULL);
  EXPECT(oscar_cache_bytes(NULL) == 0);
  EXPECT(oscar_cache_num_free_pages(NULL) == -1);
  /* `float` is another path to nearly the same. */
  EXPECT(memcmp(outputs[1], outputs[2], sizeof outputs[1]) != 0);
  double single[kQHeads * kDim];
  for (int i = 0; i < kQHeads * kDim; ++i) single[i] = outputs[2][i];
  EXPECT(relative_error(outputs[1], single, kQHeads * kDim) < 0.02);
  free(q);
}

int main(void) {
  float* keys = make_rows(kTokens * kWidth, 1);
  float* values = make_rows(kTokens * kWidth, 2);
  test_names();
  test_method();
  test_rows(keys, values);
  test_cache(keys, values);
  free(keys);
  free(values);
  printf("%d failures\n", num_failures);
  return num_failures == 0 ? 0 : 1;
}
