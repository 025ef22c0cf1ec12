/* OSCAR: a KV cache of about two bits a value. C interface.
 *
 * To calibrate: feed a collector, fit an artefact, save it. To serve: open a method for a model,
 * create a cache, create a sequence; then for every step oscar_append_begin once, and for every
 * layer oscar_append_layer and oscar_attend.
 *
 * Rows are float32, C-contiguous in the order that is given, and hold keys and queries *after*
 * RoPE. A token's position is its index in the sequence. A KV head serves num_q_heads /
 * num_kv_heads query heads that follow each other.
 *
 * Every function returns a status unless it says otherwise; on anything but OSCAR_OK,
 * oscar_last_error() says in one line which thing had which value and what would be right, and
 * nothing else has changed. No function prints, exits or throws. Handles are not thread-safe (one
 * caller at a time), except that an oscar_method may be shared: nothing changes it. */
#ifndef OSCAR_OSCAR_H_
#define OSCAR_OSCAR_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define OSCAR_API
#else
#define OSCAR_API __attribute__((visibility("default")))
#endif

/* Grows when a function or struct changes in a way that old callers notice. */
#define OSCAR_ABI_VERSION 1

typedef enum oscar_status {
  OSCAR_OK = 0,
  OSCAR_INVALID_ARGUMENT = 1, /* a value outside its legal range, or a null pointer */
  OSCAR_NOT_FOUND = 2,        /* no such file, tensor, layer, method */
  OSCAR_CORRUPT = 3,          /* bytes that contradict themselves or the format */
  OSCAR_MISMATCH = 4,         /* valid, but made for another model, shape or version */
  OSCAR_UNSUPPORTED = 5,      /* valid, but not something this build or machine can do */
  OSCAR_IO = 6,               /* the system refused to read or write */
  OSCAR_OUT_OF_PAGES = 7,     /* too few free pages; free or truncate a sequence, then again */
  OSCAR_NOT_FINITE = 8,       /* a row held NaN or Inf; it was stored as zeros, the rest as given */
  OSCAR_OUT_OF_MEMORY = 9,
  OSCAR_INTERNAL = 10 /* a fault of the library */
} oscar_status;

/* How a model's keys and values are stored: transforms, means, clips, bits. */
typedef struct oscar_method oscar_method;
/* One layer's encoder. */
typedef struct oscar_codec oscar_codec;
/* Pages and sequences of a model. */
typedef struct oscar_cache oscar_cache;
/* A calibration as named tensors and texts. */
typedef struct oscar_artefact oscar_artefact;
/* Statistics of a model's keys, values and queries, from which an artefact is fitted. */
typedef struct oscar_collector oscar_collector;

/* "0.1.0". Static; never NULL. */
OSCAR_API const char* oscar_version(void);
/* OSCAR_ABI_VERSION of the library that was loaded. */
OSCAR_API int oscar_abi_version(void);
/* The reason for this thread's last failure; "" if there was none. Valid until this thread's next
 * call. Never NULL. */
OSCAR_API const char* oscar_last_error(void);
/* "OSCAR_OUT_OF_PAGES" and so on; "unknown status" for other numbers. Static; never NULL. */
OSCAR_API const char* oscar_status_name(oscar_status status);
/* Name of the CPU kernels in use, e.g. "avx2"; the environment variable OSCAR_CPU forces one. NULL
 * when it names one that is not there. Static. */
OSCAR_API const char* oscar_kernels(void);

/* ---- Method ---- */

/* A decoder's attention layers; the same shape in every layer. */
typedef struct oscar_model {
  int32_t num_layers;
  int32_t num_q_heads; /* a multiple of num_kv_heads */
  int32_t num_kv_heads;
  int32_t head_dim_k; /* multiples of 16 from 32 to 256 */
  int32_t head_dim_v;
} oscar_model;

/* kv: METHOD or FILE, then ':' and comma-separated options, as the program's --kv takes them:
 *   "quarot", "naive:k16v16", "model.oscar.safetensors:k3v2,sink=0,recent=128"
 * METHOD is one that needs no calibration (naive, quarot, kivi, ...); FILE is an artefact that the
 * command `oscar calibrate` wrote. Options:
 *   - kKvV: bits of keys and values, each 2, 3, 4, 16
 *   - bits=2.5: stored bits a value, spent by layer (a FILE calibrated with --bits)
 *   - sink=N, recent=N: tokens with exact copies
 *   - group=N: channels that share a scale
 *   - no-u, no-p, no-hadamard, no-clip, no-mean: leave a part out
 *   - unbiased: the unbiased key scale
 *   - trellis: trellis codes, of 2-bit sides without zero points
 *   - float: attention on codes in single precision, not in integers
 *
 * model: required for a METHOD. For a FILE it may be NULL; otherwise the file must be for this
 * shape (OSCAR_MISMATCH).
 *
 * *out is set on success only and freed by oscar_method_free. */
OSCAR_API oscar_status oscar_method_open(const char* kv, const oscar_model* model,
                                         oscar_method** out);
OSCAR_API void oscar_method_free(oscar_method* method); /* NULL is allowed */

typedef struct oscar_method_info {
  char name[32]; /* "oscar-plus" */
  oscar_model model;
  int32_t k_bits, v_bits; /* 2, 3, 4, 16; 0: not the same in every layer */
  /* Stored bits, scales and zero points included, copies not; over K and V of all layers. */
  double bits_per_value;
  int32_t sink_tokens, recent_tokens; /* as the options say, else 64 and 256 */
} oscar_method_info;

OSCAR_API oscar_status oscar_method_describe(const oscar_method* method, oscar_method_info* out);

/* ---- Rows of one layer, without a cache ---- */

/* layer: 0 .. num_layers − 1. max_position: largest position of a key, at least 0. */
OSCAR_API oscar_status oscar_codec_create(const oscar_method* method, int32_t layer,
                                          int32_t max_position, oscar_codec** out);
OSCAR_API void oscar_codec_free(oscar_codec* codec); /* NULL is allowed */

/* Bytes of one token's keys (values) of all KV heads: for each head the codes in channel order, low
 * bits first, then the BF16 scale of every group, then the zero points where the method has any; at
 * 16 bits the BF16 row. 0 for NULL. */
OSCAR_API size_t oscar_codec_key_bytes(const oscar_codec* codec);
OSCAR_API size_t oscar_codec_value_bytes(const oscar_codec* codec);

/* keys: [num_tokens][num_kv_heads][head_dim_k]. positions: [num_tokens], 0 .. max_position.
 * bytes: [num_tokens][oscar_codec_key_bytes].
 * The bytes depend on key and position alone. OSCAR_NOT_FINITE: see there. */
OSCAR_API oscar_status oscar_encode_keys(const oscar_codec* codec, const float* keys,
                                         const int32_t* positions, int64_t num_tokens,
                                         uint8_t* bytes);
/* values: [num_tokens][num_kv_heads][head_dim_v]. bytes: [num_tokens][oscar_codec_value_bytes]. */
OSCAR_API oscar_status oscar_encode_values(const oscar_codec* codec, const float* values,
                                           int64_t num_tokens, uint8_t* bytes);
/* What the codes stand for, in the basis of the rows that were encoded, mean added back. Shapes as
 * above. */
OSCAR_API oscar_status oscar_decode_keys(const oscar_codec* codec, const uint8_t* bytes,
                                         const int32_t* positions, int64_t num_tokens, float* keys);
OSCAR_API oscar_status oscar_decode_values(const oscar_codec* codec, const uint8_t* bytes,
                                           int64_t num_tokens, float* values);

/* ---- Cache ---- */

typedef struct oscar_cache_options {
  size_t struct_bytes;       /* sizeof(oscar_cache_options), set by oscar_cache_options_init */
  int64_t num_pages;         /* of 64 tokens, for all layers; default 64 */
  int32_t max_sequences;     /* default 1 */
  int32_t sink_tokens;       /* first tokens, also kept exactly; default: the method's */
  int32_t recent_tokens;     /* last tokens that a query attends exactly; default: the method's */
  int64_t max_append_tokens; /* of one oscar_append_begin; default 512 */
  int32_t max_position;      /* tokens of a sequence at most; default 2^20 */
  int32_t num_threads;       /* default 1 */
} oscar_cache_options;

OSCAR_API oscar_status oscar_cache_options_init(const oscar_method* method,
                                                oscar_cache_options* out);

/* Reserves all memory the cache will ever use but for scratch of oscar_attend. options NULL: the
 * defaults. The method may be freed after. */
OSCAR_API oscar_status oscar_cache_create(const oscar_method* method,
                                          const oscar_cache_options* options, oscar_cache** out);
OSCAR_API void oscar_cache_free(oscar_cache* cache); /* NULL is allowed */
/* Bytes reserved: pages, exact copies, tables. 0 for NULL. */
OSCAR_API uint64_t oscar_cache_bytes(const oscar_cache* cache);
/* −1 for NULL. */
OSCAR_API int64_t oscar_cache_num_free_pages(const oscar_cache* cache);

/* OSCAR_UNSUPPORTED when max_sequences are in use. */
OSCAR_API oscar_status oscar_sequence_create(oscar_cache* cache, int32_t* out);
/* A sequence with the same tokens. Pages are shared until one of the two writes to them. */
OSCAR_API oscar_status oscar_sequence_fork(oscar_cache* cache, int32_t sequence, int32_t* out);
OSCAR_API oscar_status oscar_sequence_free(oscar_cache* cache, int32_t sequence);
/* Keeps the first num_tokens tokens, 0 .. the sequence's length. */
OSCAR_API oscar_status oscar_sequence_truncate(oscar_cache* cache, int32_t sequence,
                                               int64_t num_tokens);
OSCAR_API oscar_status oscar_sequence_num_tokens(const oscar_cache* cache, int32_t sequence,
                                                 int64_t* out);

/* Reserves room for num_tokens more tokens, 0 .. max_append_tokens. Every layer must then get its
 * rows before the next append, fork or truncate. OSCAR_OUT_OF_PAGES: nothing has changed. */
OSCAR_API oscar_status oscar_append_begin(oscar_cache* cache, int32_t sequence, int64_t num_tokens);
/* keys: [num_tokens][num_kv_heads][head_dim_k], values: [num_tokens][num_kv_heads][head_dim_v], of
 * the tokens that oscar_append_begin reserved. OSCAR_NOT_FINITE: the append stands. */
OSCAR_API oscar_status oscar_append_layer(oscar_cache* cache, int32_t sequence, int32_t layer,
                                          const float* keys, const float* values);

typedef struct oscar_queries {
  size_t struct_bytes; /* sizeof(oscar_queries); what follows scale may be zeros */
  const float* q;      /* [num_queries][num_q_heads][head_dim_k], the sequence's last tokens */
  float* out;          /* [num_queries][num_q_heads][head_dim_v] */
  int64_t num_queries; /* 0 .. the sequence's length */
  float scale;         /* on q·k; commonly 1/sqrt(head_dim_k) */
  float soft_cap;      /* > 0: logit = soft_cap * tanh(logit / soft_cap) */
  /* > 0: a query attends itself and the sliding_window − 1 tokens before it. */
  int32_t sliding_window;
  /* [num_q_heads] learned logits that join the softmax sum and carry no value, or NULL. */
  const float* sinks;
  float* lse; /* [num_queries][num_q_heads] natural log of the softmax sum, or NULL */
} oscar_queries;

/* Causal attention of the sequence's last tokens over all of it: softmax(q·k·scale)·v, exactly
 * where a token has an exact copy in the query's window, by the codes elsewhere. Allocates scratch
 * only when a call is larger than those before it. */
OSCAR_API oscar_status oscar_attend(oscar_cache* cache, int32_t sequence, int32_t layer,
                                    const oscar_queries* queries);

/* Stored bytes of one token in one layer: for each KV head its key, then its value, each as
 * oscar_codec_key_bytes says. bytes: [num_bytes], num_bytes = oscar_codec_key_bytes +
 * oscar_codec_value_bytes of the layer. */
OSCAR_API oscar_status oscar_token_bytes(const oscar_cache* cache, int32_t sequence, int32_t layer,
                                         int64_t token, uint8_t* bytes, size_t num_bytes);

/* ---- Pages that the caller owns, for engines with a block table of their own ---- */

/* One side (keys or values) of one page of 64 tokens for one KV head. Offsets are in bytes from the
 * plane's start; docs/format.md, "Planes". */
typedef struct oscar_plane {
  int32_t head_dim, bits, group_size, has_zero_points;
  int64_t code_row_bytes; /* of one token */
  int64_t scales_offset, zeros_offset;
  int64_t plane_bytes;
} oscar_plane;

OSCAR_API oscar_status oscar_codec_key_plane(const oscar_codec* codec, oscar_plane* out);
OSCAR_API oscar_status oscar_codec_value_plane(const oscar_codec* codec, oscar_plane* out);
/* Bytes of a page in one layer: for each KV head the key plane, then the value plane. 0 for NULL.
 */
OSCAR_API size_t oscar_codec_page_bytes(const oscar_codec* codec);

/* How one side is coded, for encoders and attention on other devices (oscar/oscar_cuda.h). Pointers
 * are valid until oscar_codec_free. */
typedef struct oscar_codec_side {
  int32_t bits, group_size; /* 16 bits: rows as they are; what follows is then empty */
  int32_t has_zero_points;
  int32_t scale_fit; /* 0: plain, 1: unbiased, 2: least squares */
  /* [num_kv_heads][head_dim][head_dim], NULL: identity. rotated row = (row − mean) · transform. */
  const float* transform;
  /* The same shape. Keys: rotated query = query · this. Values: output = rotated output · this. */
  const float* attend_transform;
  const float* mean;       /* [num_kv_heads][head_dim], NULL: none */
  const float* clip_ratio; /* [num_kv_heads] in (0, 1] */
  /* RoPE that turns the keys' mean to a token's position; 0 pairs: the mean is as it is. */
  int32_t num_pairs, pairing; /* pairing: oscar_rope_pairing */
  const float* inv_freq;      /* [num_pairs] */
  float magnitude;
  int32_t is_trellis; /* trellis codes: 2 bits, no zero points; docs/adr/0016-trellis-codes.md */
} oscar_codec_side;

OSCAR_API oscar_status oscar_codec_key_side(const oscar_codec* codec, oscar_codec_side* out);
OSCAR_API oscar_status oscar_codec_value_side(const oscar_codec* codec, oscar_codec_side* out);

/* Token i goes to slots[i] = 64 · page + offset; −1 is skipped.
 * keys: [num_tokens][num_kv_heads][head_dim_k], positions: [num_tokens], 0 .. max_position,
 * values: [num_tokens][num_kv_heads][head_dim_v], slots: [num_tokens].
 * pages: [num_pages][oscar_codec_page_bytes]. The codes are those of oscar_encode_keys and
 * oscar_encode_values. OSCAR_NOT_FINITE: see there. No two tokens may share a slot. */
OSCAR_API oscar_status oscar_encode_pages(const oscar_codec* codec, const float* keys,
                                          const float* values, const int32_t* positions,
                                          const int64_t* slots, int64_t num_tokens,
                                          int32_t num_threads, uint8_t* pages, int64_t num_pages);

typedef struct oscar_page_queries {
  size_t struct_bytes; /* sizeof(oscar_page_queries); what is not needed may be zeros */
  const float* q;      /* [num_queries][num_q_heads][head_dim_k] after RoPE */
  float* out;          /* [num_queries][num_q_heads][head_dim_v] */
  float* lse;          /* as in oscar_queries */
  /* [num_queries], 0 and above: a query attends the tokens up to its own position. */
  const int32_t* query_positions;
  int64_t num_queries;
  int32_t num_q_heads;
  int32_t num_threads;  /* 0: 1 */
  const uint8_t* pages; /* [num_pages][oscar_codec_page_bytes] */
  int64_t num_pages;
  const int32_t* block_table; /* [⌈num_tokens/64⌉] page of tokens 64·i .. 64·i + 63 */
  int64_t num_tokens;         /* of the sequence; token i has position i */
  /* Exact copies, or NULL: [num_tokens] row of each token's copy, −1: none. */
  const int32_t* copy_rows;
  const uint16_t* k_copies; /* [num_copies][num_kv_heads][head_dim_k] BF16 */
  const uint16_t* v_copies; /* [num_copies][num_kv_heads][head_dim_v] BF16 */
  int64_t num_copies;
  /* A copy is used for a token below sink_tokens, and for the recent_tokens up to the query's. */
  int32_t sink_tokens, recent_tokens;
  float scale, soft_cap;  /* as in oscar_queries */
  int32_t sliding_window; /* as in oscar_queries */
  const float* sinks;     /* as in oscar_queries */
} oscar_page_queries;

/* Attention of one sequence's queries over its pages. Allocates its scratch. */
OSCAR_API oscar_status oscar_attend_pages(const oscar_codec* codec,
                                          const oscar_page_queries* queries);

/* ---- Artefact ---- */

typedef struct oscar_tensor {
  const char* name;  /* docs/format.md, "The artefact" */
  const float* data; /* row-major */
  int32_t rank;      /* 0 .. 4 */
  int64_t shape[4];
} oscar_tensor;
typedef struct oscar_text {
  const char* key; /* UTF-8, as are the values */
  const char* value;
} oscar_text;

/* Everything in the file is checked; the first thing wrong is named. */
OSCAR_API oscar_status oscar_artefact_load(const char* path, oscar_artefact** out);
/* An artefact of the tensors and metadata of docs/format.md, checked as loading does; a matrix
 * [d, d] stands for every head. Probes and content hash are made here; leave them out. */
OSCAR_API oscar_status oscar_artefact_create(const oscar_tensor* tensors, int64_t num_tensors,
                                             const oscar_text* metadata, int64_t num_texts,
                                             oscar_artefact** out);
/* The file appears whole or not at all. */
OSCAR_API oscar_status oscar_artefact_save(const oscar_artefact* artefact, const char* path);
OSCAR_API void oscar_artefact_free(oscar_artefact* artefact); /* NULL is allowed */
/* −1 for NULL. */
OSCAR_API int64_t oscar_artefact_num_tensors(const oscar_artefact* artefact);
OSCAR_API int64_t oscar_artefact_num_texts(const oscar_artefact* artefact);
/* In the order of their names, without probes and content hash; pointers are valid until
 * oscar_artefact_free. */
OSCAR_API oscar_status oscar_artefact_tensor(const oscar_artefact* artefact, int64_t index,
                                             oscar_tensor* out);
OSCAR_API oscar_status oscar_artefact_text(const oscar_artefact* artefact, int64_t index,
                                           oscar_text* out);
/* OSCAR_MISMATCH, naming the first difference and both values, when the artefact is not for this
 * model. weights_hash: NULL or "": not known, not compared. */
OSCAR_API oscar_status oscar_artefact_check_model(const oscar_artefact* artefact,
                                                  const char* architecture,
                                                  const oscar_model* model,
                                                  const char* weights_hash);
/* XXH3-128 of bytes, as 32 hex digits and a NUL: what weights_hash holds. */
OSCAR_API oscar_status oscar_hash(const void* bytes, size_t num_bytes, char out[33]);

/* ---- Calibration ---- */

typedef enum oscar_rope_pairing {
  OSCAR_ROPE_HALF_SPLIT = 0, /* channel f pairs with f + num_pairs */
  OSCAR_ROPE_INTERLEAVED = 1 /* channel 2f pairs with 2f + 1 */
} oscar_rope_pairing;

typedef struct oscar_rope {
  int32_t pairing; /* oscar_rope_pairing */
  int32_t num_pairs;
  const float* inv_freq; /* [num_pairs] radians a position */
  float magnitude;       /* factor on the rotated channels; 1 for most */
} oscar_rope;

/* seed chooses the rows that are sampled. */
OSCAR_API oscar_status oscar_collector_create(uint64_t seed, oscar_collector** out);
OSCAR_API void oscar_collector_free(oscar_collector* collector); /* NULL is allowed */

/* Rows of some tokens of one layer; the tokens of a layer come in order, the layers in any. */
typedef struct oscar_layer_rows {
  size_t struct_bytes; /* sizeof(oscar_layer_rows) */
  int32_t layer;       /* the model's index, 0 .. 4095 */
  int32_t num_q_heads, num_kv_heads, head_dim_k, head_dim_v;
  float scale;              /* on q·k */
  const oscar_rope* rope;   /* NULL: not known, the mean key is taken after RoPE */
  int64_t num_tokens;       /* at least 0 */
  const int32_t* positions; /* [num_tokens], 0 and above */
  const float* queries;     /* [num_tokens][num_q_heads][head_dim_k] after RoPE */
  const float* keys;        /* [num_tokens][num_kv_heads][head_dim_k] after RoPE */
  const float* values;      /* [num_tokens][num_kv_heads][head_dim_v] */
  const float* outputs;     /* [num_tokens][num_q_heads][head_dim_v] of attention, before W_O */
} oscar_layer_rows;

/* Rows with NaN or Inf are left out and counted. */
OSCAR_API oscar_status oscar_collector_add(oscar_collector* collector,
                                           const oscar_layer_rows* rows);
/* Rows left out so far; −1 for NULL. */
OSCAR_API int64_t oscar_collector_num_non_finite(const oscar_collector* collector);

/* Sums over what was added for one KV head; pointers are valid until the next call with the
 * collector. Keys are before RoPE where it is known. */
typedef struct oscar_head_statistics {
  int64_t num_queries, num_tokens, num_values; /* rows in the sums of queries, keys, values */
  const double* query_covariance;  /* [head_dim_k][head_dim_k] Σ qᵀq over the group */
  const double* output_covariance; /* [head_dim_v][head_dim_v] Σ oᵀo over the group */
  const double* key_sum;           /* [head_dim_k] */
  const double* key_square_sum;    /* [head_dim_k] */
  const double* value_sum;         /* [head_dim_v] */
} oscar_head_statistics;

OSCAR_API oscar_status oscar_collector_head(const oscar_collector* collector, int32_t layer,
                                            int32_t kv_head, oscar_head_statistics* out);

/* method: "oscar" or "oscar-plus". architecture, weights_hash: what the artefact says of the model;
 * NULL: "". Layers are fitted on num_threads threads; the result does not depend on it. */
OSCAR_API oscar_status oscar_fit(const oscar_collector* collector, const char* method,
                                 const char* architecture, const char* weights_hash,
                                 int32_t num_threads, oscar_artefact** out);

#ifdef __cplusplus
}
#endif

#endif /* OSCAR_OSCAR_H_ */
