#include "cuda/plan.h"

#include <algorithm>
#include <cstdint>

#include "base/checked_math.h"
#include "base/error.h"
#include "cuda/attend_units.h"
#include "cuda/sm80/attend/config.h"
#include "cuda/sm90/prefill/config.h"

namespace oscar::cuda {
namespace {

constexpr int kMaxRatio = 16;
constexpr int kMaxHopperSeqs = 1024;  // prefix sums of the batch lie in shared memory
constexpr int kMaxHopperQueries = 8;
constexpr int kGenericRows = 16, kGenericPrefillRows = 64;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;
constexpr std::size_t kAlignment = 256;

[[noreturn]] void refuse(ErrorCode code, const std::string& what) { throw Error(code, what); }
std::string text(std::int64_t value) { return std::to_string(value); }

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void check_device(const DeviceInfo& device) {
  if (device.compute_capability < 80) {
    refuse(ErrorCode::kUnsupported, "compute capability " + text(device.compute_capability / 10) +
                                        "." + text(device.compute_capability % 10) +
                                        " is not supported; needed: 8.0 or later");
  }
  if (device.num_sms <= 0) {
    refuse(ErrorCode::kInvalidArgument, "num_sms " + text(device.num_sms) + " must be positive");
  }
}

void check_shape(const AttendShape& shape) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value <= 0) {
      refuse(ErrorCode::kInvalidArgument,
             std::string(name) + " " + text(value) + " must be positive");
    }
  };
  const auto not_negative = [](const char* name, std::int64_t value) {
    if (value < 0) {
      refuse(ErrorCode::kInvalidArgument,
             std::string(name) + " " + text(value) + " must not be negative");
    }
  };
  positive("num_seqs", shape.num_seqs);
  positive("num_queries", shape.num_queries);
  positive("num_q_heads", shape.num_q_heads);
  positive("num_kv_heads", shape.num_kv_heads);
  positive("max_seq_len", shape.max_seq_len);
  not_negative("sink_tokens", shape.sink_tokens);
  not_negative("recent_tokens", shape.recent_tokens);
  not_negative("sliding_window", shape.sliding_window);
  if (shape.max_seq_len > kMaxTokens) {
    refuse(ErrorCode::kUnsupported,
           "max_seq_len " + text(shape.max_seq_len) + " is above the limit " + text(kMaxTokens));
  }
  const int ratio = shape.num_q_heads / shape.num_kv_heads;
  if (shape.num_q_heads % shape.num_kv_heads != 0 || ratio > kMaxRatio) {
    refuse(ErrorCode::kUnsupported, "num_q_heads " + text(shape.num_q_heads) +
                                        " over num_kv_heads " + text(shape.num_kv_heads) +
                                        ": the ratio must be a whole number from 1 to " +
                                        text(kMaxRatio));
  }
  if (shape.key.head_dim != shape.value.head_dim) {
    refuse(ErrorCode::kUnsupported, "head sizes of keys and values differ (" +
                                        text(shape.key.head_dim) + ", " +
                                        text(shape.value.head_dim) + "); CUDA needs them equal");
  }
  device_plane(shape.key, Side::kKey);
  device_plane(shape.value, Side::kValue);
  const int most_pairs = shape.key.head_dim / 2;
  if (shape.has_mean && (shape.mean_pairs <= 0 || shape.mean_pairs > most_pairs)) {
    refuse(ErrorCode::kInvalidArgument, "mean_pairs " + text(shape.mean_pairs) +
                                            " must be from 1 to half the head size, " +
                                            text(most_pairs));
  }
}

bool is_trellis(const QuantSpec& quant) { return quant.codebook == Codebook::kTrellis; }

// "keys of 2 and values of 2 bits, trellis codes"
std::string codes_text(const AttendShape& shape) {
  const QuantSpec &key = shape.key.quant, &value = shape.value.quant;
  return "keys of " + text(key.bits) + " and values of " + text(value.bits) + " bits" +
         (is_trellis(key) ? ", trellis codes" : "");
}

bool has_hopper_trellis(int head_dim, bool has_mean) {
#define OSCAR_HOPPER_DECODE_TRELLIS(d, mean) \
  if (head_dim == d && has_mean == mean) return true;
#include "cuda/sm90/decode/kernels_trellis.inc"
  return false;
}

bool has_hopper_prefill_trellis(int head_dim) {
#define OSCAR_HOPPER_PREFILL_TRELLIS(d) \
  if (head_dim == d) return true;
#include "cuda/sm90/prefill/kernels_trellis.inc"
  return false;
}

bool has_hopper_kernel(int head_dim, int key_bits, int value_bits) {
#define OSCAR_HOPPER_DECODE(d, k, v) \
  if (head_dim == d && key_bits == k && value_bits == v) return true;
#include "cuda/sm90/decode/kernels.inc"
  return false;
}

bool has_hopper_mean(int head_dim, int key_bits, int value_bits) {
#define OSCAR_HOPPER_DECODE_MEAN(d, k, v) \
  if (head_dim == d && key_bits == k && value_bits == v) return true;
#include "cuda/sm90/decode/kernels_mean.inc"
  return false;
}

bool has_hopper_prefill(int head_dim, int key_bits, int value_bits) {
#define OSCAR_HOPPER_PREFILL(d, k, v) \
  if (head_dim == d && key_bits == k && value_bits == v) return true;
#include "cuda/sm90/prefill/kernels.inc"
  return false;
}

// Why no Hopper kernel runs here, whatever the shape; null: they do.
const char* no_hopper(const DeviceInfo& device) {
  if (device.compute_capability / 10 != 9) return "the card is not Hopper (9.x)";
  return device.has_hopper_code ? nullptr : "this build has no code for Hopper (sm_90a)";
}

// Why the Hopper prefill kernel does not serve the shape; empty: it does.
std::string prefill_refusal(const AttendShape& shape, const DeviceInfo& device) {
  const QuantSpec &key = shape.key.quant, &value = shape.value.quant;
  const int head_dim = shape.key.head_dim;
  if (const char* reason = no_hopper(device)) return reason;
  // Affine and symmetric codes may be mixed.
  if (is_trellis(key) != is_trellis(value)) return "keys and values have different codebooks";
  if (is_trellis(key) ? !has_hopper_prefill_trellis(head_dim)
                      : !has_hopper_prefill(head_dim, key.bits, value.bits)) {
    return "no kernel for head size " + text(head_dim) + ", " + codes_text(shape);
  }
  if (key.group_size != head_dim || value.group_size != head_dim) {
    return "groups smaller than the head";
  }
  if (shape.has_mean && shape.mean_pairs > kHopperPrefillMeanPairs) {
    return "a key mean of " + text(shape.mean_pairs) + " pairs has more than " +
           text(kHopperPrefillMeanPairs);
  }
  return "";
}

// Why the Hopper decode kernel does not serve the shape; empty: it does.
std::string hopper_refusal(const AttendShape& shape, const DeviceInfo& device) {
  const QuantSpec &key = shape.key.quant, &value = shape.value.quant;
  const int head_dim = shape.key.head_dim;
  if (const char* reason = no_hopper(device)) return reason;
  const bool has_kernel = is_trellis(key) ? has_hopper_trellis(head_dim, false)
                                          : has_hopper_kernel(head_dim, key.bits, value.bits);
  if (!has_kernel) {
    return "no Hopper kernel for head size " + text(head_dim) + ", " + codes_text(shape);
  }
  if (key.codebook != value.codebook) return "keys and values have different codebooks";
  const int chunk = std::min(head_dim, 128);
  for (const QuantSpec* quant : {&key, &value}) {
    if (quant->group_size != chunk && quant->group_size != head_dim) {
      return "group size " + text(quant->group_size) + " is neither " + text(chunk) +
             " nor the head size";
    }
  }
  if (shape.num_queries > kMaxHopperQueries) {
    return text(shape.num_queries) + " query tokens a sequence are more than " +
           text(kMaxHopperQueries);
  }
  if (shape.num_seqs > kMaxHopperSeqs) {
    return text(shape.num_seqs) + " sequences are more than " + text(kMaxHopperSeqs);
  }
  const bool has_mean_kernel = is_trellis(key) ? has_hopper_trellis(head_dim, true)
                                               : has_hopper_mean(head_dim, key.bits, value.bits);
  if (shape.has_mean && !has_mean_kernel) {
    return "no Hopper kernel with the key mean for head size " + text(head_dim) + ", " +
           codes_text(shape);
  }
  if (shape.has_mean && shape.mean_pairs % 2 != 0) {
    return "a key mean of " + text(shape.mean_pairs) + " pairs: an odd number of them";
  }
  return "";
}

std::int64_t most_units(const AttendShape& shape) {
  const WindowRules rules{shape.num_queries, shape.sink_tokens, shape.recent_tokens,
                          shape.sliding_window};
  return std::max(
      1, sequence_units(rules, shape.has_copies, static_cast<std::int32_t>(shape.max_seq_len))
             .count());
}

// Blocks of one item each when the items are few: a block that crosses items pays prologue and
// epilogue twice.
void split_hopper(AttendPlan& plan, const DeviceInfo& device) {
  const std::int64_t items =
      std::int64_t{plan.shape.num_seqs} * plan.shape.num_kv_heads * plan.num_row_blocks;
  const std::int64_t units = most_units(plan.shape);
  if (items * units > INT32_MAX) {
    refuse(ErrorCode::kUnsupported, text(items) + " (sequence, head, row block) items of " +
                                        text(units) +
                                        " units exceed 2^31; use fewer sequences in one launch");
  }
  const std::int64_t splits = std::min<std::int64_t>(device.num_sms / items, units);
  const bool fills_the_card = splits * items * 10 >= std::int64_t{device.num_sms} * 9;
  if (splits > 0 && (fills_the_card || splits == units)) {
    plan.num_splits = static_cast<int>(splits);
    plan.grid = static_cast<int>(splits * items);
  } else {
    plan.num_splits = 0;
    plan.grid = static_cast<int>(std::min<std::int64_t>(device.num_sms, items * units));
  }
}

// Blocks of one item each, as many as the card runs at once.
void split_by_pages(AttendPlan& plan, int blocks_at_once) {
  const std::int64_t items =
      std::int64_t{plan.shape.num_seqs} * plan.shape.num_kv_heads * plan.num_row_blocks;
  const std::int64_t pages = (plan.shape.max_seq_len + kPageTokens - 1) / kPageTokens;
  const std::int64_t wanted = std::max<std::int64_t>(1, blocks_at_once / items);
  plan.num_splits = static_cast<int>(std::min(wanted, pages));
  if (items * plan.num_splits > INT32_MAX) {
    refuse(ErrorCode::kUnsupported, text(items) + " items are too many for one launch");
  }
  plan.grid = static_cast<int>(items * plan.num_splits);
}

AttendPlan make_plan(const AttendShape& shape, const DeviceInfo& device, AttendKernel kernel) {
  AttendPlan plan;
  plan.shape = shape;
  plan.kernel = kernel;
  const int rows = shape.num_queries * (shape.num_q_heads / shape.num_kv_heads);
  if (kernel == AttendKernel::kHopperDecode) {
    plan.rows_per_block = rows <= 4 ? 4 : 8;
  } else if (kernel == AttendKernel::kHopperPrefill) {
    plan.rows_per_block = sm90::kPrefillRows;
  } else {
    const auto bytes = [&](int block_rows) {
      return sm80::shared_bytes(shape.key.head_dim, block_rows, shape.key.num_groups(),
                                shape.has_mean);
    };
    const bool is_prefill =
        rows > kGenericRows && bytes(kGenericPrefillRows) <= device.shared_bytes_per_block;
    plan.rows_per_block = is_prefill ? kGenericPrefillRows : kGenericRows;
    if (bytes(plan.rows_per_block) > device.shared_bytes_per_block) {
      refuse(ErrorCode::kUnsupported, "a block needs " + text(bytes(plan.rows_per_block)) +
                                          " bytes of shared memory; this card gives " +
                                          text(device.shared_bytes_per_block));
    }
  }
  plan.num_row_blocks = (rows + plan.rows_per_block - 1) / plan.rows_per_block;
  if (kernel == AttendKernel::kHopperDecode) {
    split_hopper(plan, device);
  } else {
    // The generic kernel runs two blocks a multiprocessor.
    split_by_pages(plan, (kernel == AttendKernel::kGeneric ? 2 : 1) * device.num_sms);
  }
  const std::size_t items = std::size_t(shape.num_seqs) * std::size_t(shape.num_kv_heads) *
                            std::size_t(plan.num_row_blocks);
  plan.counter_bytes = aligned(sizeof(std::int32_t) * (items + 1));
  const std::size_t partial_floats =
      kernel == AttendKernel::kGeneric
          ? std::size_t(sm80::partial_floats(shape.key.head_dim))
          : std::size_t(plan.rows_per_block) * (std::size_t(shape.key.head_dim) + 2);
  const bool has_parts = kernel != AttendKernel::kHopperPrefill || plan.num_splits > 1;
  plan.workspace_bytes =
      plan.counter_bytes +
      (has_parts ? aligned(sizeof(float) * 2 * std::size_t(plan.grid) * partial_floats) : 0);
  return plan;
}

bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace

const char* kernel_name(AttendKernel kernel) noexcept {
  switch (kernel) {
    case AttendKernel::kHopperDecode: return "hopper-decode";
    case AttendKernel::kHopperPrefill: return "hopper-prefill";
    default: return "generic";
  }
}

AttendPlan plan_attend(const AttendShape& shape, const DeviceInfo& device) {
  check_device(device);
  check_shape(shape);
  std::string refusal = hopper_refusal(shape, device);
  AttendKernel kernel = refusal.empty() ? AttendKernel::kHopperDecode : AttendKernel::kGeneric;
  if (shape.num_queries > kMaxHopperQueries) {
    const std::string second = prefill_refusal(shape, device);
    if (second.empty()) {
      kernel = AttendKernel::kHopperPrefill;
    } else {
      refusal += "; hopper-prefill: " + second;
    }
  }
  AttendPlan plan = make_plan(shape, device, kernel);
  plan.reason = refusal;
  return plan;
}

AttendPlan plan_attend(const AttendShape& shape, const DeviceInfo& device, AttendKernel kernel) {
  check_device(device);
  check_shape(shape);
  if (kernel == AttendKernel::kHopperDecode) {
    const std::string refusal = hopper_refusal(shape, device);
    if (!refusal.empty()) refuse(ErrorCode::kUnsupported, "hopper-decode: " + refusal);
  }
  if (kernel == AttendKernel::kHopperPrefill) {
    const std::string refusal = prefill_refusal(shape, device);
    if (!refusal.empty()) refuse(ErrorCode::kUnsupported, "hopper-prefill: " + refusal);
  }
  return make_plan(shape, device, kernel);
}

std::string check_params(const AttendPlan& plan, const AttendParams& params,
                         std::size_t workspace_bytes) {
  const AttendShape& shape = plan.shape;
  const auto differs = [](const char* name, std::int64_t is, std::int64_t planned) {
    return is == planned
               ? std::string()
               : std::string(name) + " " + text(is) + " differs from the plan's " + text(planned);
  };
  const int head_dim = shape.key.head_dim;
  const std::int64_t run_bytes = shape.key.plane_bytes() + shape.value.plane_bytes();
  for (const std::string& problem :
       {differs("num_seqs", params.num_seqs, shape.num_seqs),
        differs("num_queries", params.num_queries, shape.num_queries),
        differs("num_q_heads", params.num_q_heads, shape.num_q_heads),
        differs("num_kv_heads", params.num_kv_heads, shape.num_kv_heads),
        differs("sink_tokens", params.sink_tokens, shape.sink_tokens),
        differs("recent_tokens", params.recent_tokens, shape.recent_tokens),
        differs("sliding_window", params.sliding_window, shape.sliding_window),
        differs("key plane bytes", params.key.plane_bytes(), shape.key.plane_bytes()),
        differs("value plane bytes", params.value.plane_bytes(), shape.value.plane_bytes()),
        differs("trellis codes of keys", params.key.trellis, is_trellis(shape.key.quant)),
        differs("trellis codes of values", params.value.trellis, is_trellis(shape.value.quant)),
        differs("exact copies", params.copies.rows != nullptr, shape.has_copies),
        differs("key mean", params.mean.coefficients != nullptr, shape.has_mean)}) {
    if (!problem.empty()) return problem;
  }
  if (!params.pages || !params.block_table || !params.seq_lens || !params.q || !params.out) {
    return "pages, block_table, seq_lens, q and out must not be null";
  }
  if (!is_aligned(params.pages, 16) || params.page_stride_bytes % 16 != 0 ||
      params.head_stride_bytes % 16 != 0) {
    return "pages, page_stride_bytes and head_stride_bytes must be multiples of 16";
  }
  if (params.head_stride_bytes < run_bytes) {
    return "head_stride_bytes " + text(params.head_stride_bytes) + " is less than a run of " +
           text(run_bytes);
  }
  if (params.page_stride_bytes >= (std::int64_t{1} << 32) ||
      params.block_table_stride >= (std::int64_t{1} << 32)) {
    return "page_stride_bytes and block_table_stride must be below 2^32";
  }
  if (params.page_stride_bytes < params.num_kv_heads * params.head_stride_bytes &&
      params.head_stride_bytes < params.page_stride_bytes) {
    return "page_stride_bytes " + text(params.page_stride_bytes) + " is less than its heads take";
  }
  if (params.num_pages <= 0) return "num_pages " + text(params.num_pages) + " must be positive";
  const std::int64_t pages_needed = (shape.max_seq_len + kPageTokens - 1) / kPageTokens;
  if (params.block_table_stride < pages_needed) {
    return "block_table_stride " + text(params.block_table_stride) + " is less than the " +
           text(pages_needed) + " pages of max_seq_len";
  }
  if (!is_aligned(params.q, 16) || !is_aligned(params.out, 16) || params.q_token_stride % 8 != 0 ||
      params.out_token_stride % 8 != 0) {
    return "q and out must be 16-byte aligned and their strides multiples of 8";
  }
  if (params.raw_q != nullptr &&
      (!is_aligned(params.raw_q, 16) || params.raw_q_token_stride % 8 != 0 ||
       params.raw_q_token_stride < std::int64_t{head_dim} * params.num_q_heads)) {
    return "raw_q must be 16-byte aligned, and its token stride a multiple of 8 and at least "
           "num_q_heads·head_dim";
  }
  if (params.q_token_stride < std::int64_t{head_dim} * params.num_q_heads ||
      params.out_token_stride < std::int64_t{head_dim} * params.num_q_heads) {
    return "q_token_stride and out_token_stride must be at least num_q_heads·head_dim";
  }
  if (params.out_image != nullptr) {
    if (head_dim != 64 && head_dim != 128) {
      return "out_image serves head sizes 64 and 128, not " + text(head_dim);
    }
    if (!is_aligned(params.out_image, 16)) return "out_image must be 16-byte aligned";
  }
  if (shape.has_copies) {
    if (params.copies.blocks == nullptr) return "copies.blocks must not be null with copies";
    if (!is_aligned(params.copies.rows, 16)) return "copies.rows must be 16-byte aligned";
    if (params.copies.sink_rows != params.sink_tokens) {
      return "copies.sink_rows " + text(params.copies.sink_rows) + " must equal sink_tokens";
    }
    if (params.recent_tokens > 0 &&
        params.copies.ring_rows < params.recent_tokens + params.num_queries - 1) {
      return "copies.ring_rows " + text(params.copies.ring_rows) +
             " must be at least recent_tokens + num_queries - 1";
    }
  }
  if (shape.has_mean) {
    if (!is_aligned(params.mean.tile, 8) || !is_aligned(params.mean.start, 8) ||
        !params.mean.tile || !params.mean.start) {
      return "the key mean needs its tables, 8-byte aligned";
    }
    if (plan.kernel == AttendKernel::kHopperDecode && !is_aligned(params.mean.start, 16)) {
      return "the key mean's table of page starts must be 16-byte aligned";
    }
    const std::string problem = differs("mean pairs", params.mean.num_pairs, shape.mean_pairs);
    if (!problem.empty()) return problem;
  }
  if (!(params.soft_cap >= 0)) return "soft_cap must not be negative or NaN";
  if (workspace_bytes < plan.workspace_bytes) {
    return "workspace of " + text(static_cast<std::int64_t>(workspace_bytes)) +
           " bytes is too small; needed: " + text(static_cast<std::int64_t>(plan.workspace_bytes));
  }
  return "";
}

}  // namespace oscar::cuda
