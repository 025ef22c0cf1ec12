/* OSCAR on CUDA: encode rows into coded pages and attend to them. C interface: raw pointers, shapes
 * and a stream; no framework. Compute capability 8.0 and later.
 *
 * Pointers are to device memory unless said otherwise; `stream` is a cudaStream_t. No function
 * allocates device memory or synchronises; encode, prepare and attend may be captured in a graph,
 * which then serves later steps with other lengths, tables and rows. Lengths and tables are read on
 * the device.
 *
 * A *page* holds 64 tokens; for each KV head a *run* of bytes: key plane, then value plane, in the
 * device order of the codes (oscar_cuda_plan_info says how many bytes). Keys and queries are after
 * RoPE; "rotated" is after the method's transform.
 *
 * Functions return a status; on anything but OSCAR_OK, oscar_cuda_last_error() says in one line
 * which thing had which value and what would be right, and nothing was launched. A plan may be used
 * by several threads at once, each with its own workspace. */
#ifndef OSCAR_OSCAR_CUDA_H_
#define OSCAR_OSCAR_CUDA_H_

#include "oscar/oscar.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a function or struct changes in a way that old callers notice. */
#define OSCAR_CUDA_ABI_VERSION 2

OSCAR_API int oscar_cuda_abi_version(void);
/* The reason for this thread's last failure; "" if there was none. Never NULL. */
OSCAR_API const char* oscar_cuda_last_error(void);

/* What this library was built for: "CUDA: sm_80, sm_90, sm_90a, sm_120, PTX of 8.0; nvcc …". Never
 * NULL. */
OSCAR_API const char* oscar_cuda_build(void);

/* Whether this library runs on a device, without launching anything: ask before a model is loaded.
 * OSCAR_UNSUPPORTED, and the reason in oscar_cuda_last_error(): no driver, no GPU, no such device,
 * or "built for …, this GPU is …". */
OSCAR_API oscar_status oscar_cuda_check_device(int device);

/* How keys or values are coded. */
typedef struct oscar_cuda_quant {
  int32_t bits;       /* 2, 3 or 4 */
  int32_t group_size; /* channels of a scale: divides head_dim, a multiple of 16 */
  /* 1: scale and zero point; 0: scale alone, levels symmetric about zero; 2: scale alone, trellis
   * codes (2 bits). */
  int32_t affine;
  int32_t scale_fit; /* 0: plain, 1: unbiased, 2: least squares */
} oscar_cuda_quant;

/* ---- Attention ---- */

typedef struct oscar_cuda_shape {
  int32_t num_seqs;
  int32_t num_queries;               /* tokens of each sequence that ask, the last ones; causal */
  int32_t num_q_heads, num_kv_heads; /* ratio 1 to 16 */
  int32_t head_dim;                  /* multiples of 16 from 32 to 256 */
  oscar_cuda_quant key, value;
  int64_t max_seq_len;                /* no sequence gets longer while the plan is in use */
  int32_t sink_tokens, recent_tokens; /* of a sequence with exact copies: first and last ones */
  int32_t sliding_window;             /* 0: none */
  int32_t has_copies;                 /* 0 or 1 */
  int32_t mean_pairs;                 /* frequency pairs of the key mean; 0: none */
} oscar_cuda_shape;

typedef struct oscar_cuda_plan oscar_cuda_plan;

/* Chooses the kernel and its launch for a card. *out is set on success only and freed by
 * oscar_cuda_plan_free. OSCAR_UNSUPPORTED: no such card, or a shape that no kernel serves. */
OSCAR_API oscar_status oscar_cuda_plan_create(const oscar_cuda_shape* shape, int device,
                                              oscar_cuda_plan** out);
OSCAR_API void oscar_cuda_plan_free(oscar_cuda_plan* plan); /* NULL is allowed */

typedef struct oscar_cuda_plan_info {
  char kernel[32];  /* "hopper-decode", "hopper-prefill" or "generic" */
  char reason[160]; /* why not the fast kernel; "" when it is */
  uint64_t workspace_bytes;
  int32_t key_plane_bytes, value_plane_bytes; /* of a page and KV head */
} oscar_cuda_plan_info;
OSCAR_API oscar_status oscar_cuda_plan_describe(const oscar_cuda_plan* plan,
                                                oscar_cuda_plan_info* out);

typedef struct oscar_cuda_attend_args {
  const uint8_t* pages; /* [num_pages][num_kv_heads] runs, 16-byte aligned as are the strides */
  int64_t page_stride_bytes, head_stride_bytes, num_pages;
  const int32_t* block_table; /* [num_seqs][block_table_stride] page ids */
  int64_t block_table_stride;
  const int32_t* seq_lens; /* [num_seqs] tokens in the cache, the queries' own included */
  const uint16_t* q;       /* [num_seqs·num_queries][num_q_heads][head_dim] BF16, rotated */
  uint16_t* out;           /* the same shape, BF16, rotated basis of the values */
  float* lse;              /* [num_seqs·num_queries][num_q_heads] natural log, or NULL */
  int64_t q_token_stride, out_token_stride; /* in elements */
  /* Exact copies, with has_copies: BF16 rows, rotated, keys with their mean or (raw_q) as they
   * came. [blocks][num_kv_heads][2: key, value][sink_tokens + ring_rows][head_dim]; token t is row
   * t when among the sinks, else sink_tokens + t mod ring_rows. */
  const uint16_t* copies;
  const int32_t* copy_blocks; /* [num_seqs] block of the sequence, −1: none */
  int32_t ring_rows;          /* at least recent_tokens + num_queries − 1 */
  int32_t overlap_previous; /* 1: programmatic launch; the kernel before this one on the stream must
                             * not write block table, lengths or coded pages of tokens before the
                             * recent ones */
  /* The key mean, with mean_pairs: coefficients [num_seqs][num_queries][num_q_heads][2·pairs + 1]
   * of cos, sin and 1; mean_tile [64][pairs][2] and mean_start [max_pages][pairs][2] cos, sin, the
   * latter 16-byte aligned. An even number of pairs, 32 at most, is fast on Hopper. */
  const float* mean_coefficients;
  const float *mean_tile, *mean_start;
  const float* learned_sinks; /* [num_q_heads] logits, or NULL */
  float scale;                /* on q·k */
  float soft_cap;             /* 0: none */
  /* Of the inverse of the values' transform (oscar_cuda_transform_image), head sizes 64 and 128:
   * outputs in the raw basis. NULL: in the rotated one. */
  const void* out_image;
  /* With copies of keys as they came (raw_key_copies): the queries before the transform, for exact
   * keys; the shape of q, 16-byte aligned. NULL: copies of keys are in the basis of q. */
  const uint16_t* raw_q;
  int64_t raw_q_token_stride; /* in elements, a multiple of 8 */
} oscar_cuda_attend_args;

/* Once for a workspace (256-byte aligned): zeroes its counters. */
OSCAR_API oscar_status oscar_cuda_prepare(const oscar_cuda_plan* plan, void* workspace,
                                          uint64_t workspace_bytes, void* stream);
OSCAR_API oscar_status oscar_cuda_attend(const oscar_cuda_plan* plan,
                                         const oscar_cuda_attend_args* args, void* workspace,
                                         uint64_t workspace_bytes, void* stream);

/* ---- Encoding ---- */

typedef struct oscar_cuda_encode_side {
  const uint16_t* rows; /* [num_tokens][num_kv_heads][head_dim] BF16; NULL: leave the side out */
  int64_t token_stride, head_stride; /* in elements */
  /* At most one of them; neither: the rows are rotated already. transform: [num_kv_heads][head_dim]
   * [head_dim], summed in the CPU's order, bytes equal to the CPU's. transform_image: by
   * oscar_cuda_transform_image, on tensor cores; one code in a thousand may differ, by one (of
   * trellis codes by any step: another path of as little error). */
  const float* transform;
  const void* transform_image;
  const float* mean; /* [num_kv_heads][head_dim], keys: before RoPE; or NULL. With an image 16-byte
                      * aligned, as the tables of RoPE. */
  const float* clip_ratio; /* [num_kv_heads] in (0, 1] */
  oscar_cuda_quant quant;
} oscar_cuda_encode_side;

typedef struct oscar_cuda_encode_args {
  oscar_cuda_encode_side key, value;
  int64_t num_tokens;
  int32_t num_kv_heads, head_dim;
  uint8_t* pages; /* as for attention */
  int64_t page_stride_bytes, head_stride_bytes;
  const int64_t* slots; /* [num_tokens] page·64 + offset, −1: skip the token */
  /* RoPE of the key mean; mean_pairs 0: the mean is static. */
  const int32_t* positions; /* [num_tokens] */
  const float *mean_tile, *mean_start;
  int32_t mean_pairs, interleaved; /* interleaved 1: channel 2f pairs with 2f + 1 */
  uint16_t* copies;                /* as for attention, or NULL */
  const int64_t* copy_slots;       /* [num_tokens] block·rows_per_block + row, −1: none */
  int32_t rows_per_block;
  int32_t* non_finite; /* [1] set to 1 when a row held NaN or Inf (stored as zeros), or NULL */
  /* 1: copies of keys are the rows as they came, for attention with raw_q. Rotated, a large mean
   * rounds in every channel: of keys 900 long logits are off by 0.3. */
  int32_t raw_key_copies;
} oscar_cuda_encode_args;

OSCAR_API oscar_status oscar_cuda_encode(const oscar_cuda_encode_args* args, void* stream);

/* Bytes of the image of num_kv_heads matrices; head_dim 64 or 128. */
OSCAR_API uint64_t oscar_cuda_transform_image_bytes(int32_t num_kv_heads, int32_t head_dim);
/* matrices: [num_kv_heads][head_dim][head_dim]; image: 16-byte aligned. */
OSCAR_API oscar_status oscar_cuda_transform_image(const float* matrices, int32_t num_kv_heads,
                                                  int32_t head_dim, void* image, void* stream);

/* Rows times a matrix a KV head: queries into the keys' rotated basis, outputs back from the
 * values'. rows, out: [num_tokens][num_kv_heads·heads_per_kv_head][head_dim] BF16, strides in
 * elements; out may not overlap rows. */
OSCAR_API oscar_status oscar_cuda_transform_rows(const uint16_t* rows, uint16_t* out,
                                                 int64_t token_stride, int64_t out_token_stride,
                                                 const void* image, int64_t num_tokens,
                                                 int32_t num_kv_heads, int32_t heads_per_kv_head,
                                                 int32_t head_dim, void* stream);

/* ---- Back to rows ---- */

/* Codes of one sequence as rows in order, for a prefill that continues a prompt. */
typedef struct oscar_cuda_dequantize_args {
  const uint8_t* pages; /* as for attention */
  int64_t page_stride_bytes, head_stride_bytes;
  const int32_t* block_table;      /* [⌈(first_token + num_tokens)/64⌉] of the sequence */
  int64_t first_token, num_tokens; /* the range of its tokens */
  int32_t num_kv_heads, head_dim;  /* head_dim: a multiple of 16 */
  oscar_cuda_quant key, value;
  /* [num_tokens][num_kv_heads][head_dim] BF16, rotated, without the mean; NULL: left out. */
  uint16_t *keys, *values;
  int64_t token_stride; /* of both, in elements */
} oscar_cuda_dequantize_args;

OSCAR_API oscar_status oscar_cuda_dequantize(const oscar_cuda_dequantize_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* OSCAR_OSCAR_CUDA_H_ */
