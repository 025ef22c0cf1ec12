#include "attention/block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "attention/select.h"
#include "attention/soft_cap.h"

namespace oscar::attention {
namespace {

// Rows that one call of the floating-point kernels on codes takes.
constexpr std::int64_t kMaxCodeRows = 16;

const std::uint8_t* as_plane(const bf16_t* rows) {
  return reinterpret_cast<const std::uint8_t*>(rows);
}

// Rows of 16 bits, one a cell of a page.
struct ExactRows {
  const std::uint8_t* plane;
  std::int64_t row_stride_bytes;
};

// The copies of the page's cells: where they are if a whole page of them follows each other, else
// gathered into `rows`, with zeros for cells that are not seen. `stride`: values from slot to slot.
ExactRows copies_of_page(const bf16_t* copies, std::int64_t stride, const std::int32_t* slots,
                         std::uint64_t seen, int num_cells, int head_dim, bf16_t* rows) {
  if (seen == low_bits(kPageSize)) {
    std::int32_t differences = 0;
    for (int t = 0; t < static_cast<int>(kPageSize); ++t) differences |= slots[t] ^ (slots[0] + t);
    if (differences == 0) {
      return {as_plane(copies + slots[0] * stride),
              static_cast<std::int64_t>(sizeof(bf16_t)) * stride};
    }
  }
  const std::size_t row_bytes = sizeof(bf16_t) * head_dim;
  for (int t = 0; t < num_cells; ++t) {
    bf16_t* const row = rows + std::int64_t{t} * head_dim;
    if ((seen >> t & 1) == 0) {
      std::memset(row, 0, row_bytes);
    } else {
      std::memcpy(row, copies + slots[t] * stride, row_bytes);
    }
  }
  return {as_plane(rows), static_cast<std::int64_t>(row_bytes)};
}

constexpr PlaneLayout exact_layout(int head_dim) { return {head_dim, {16, head_dim}}; }

}  // namespace

BlockRows::BlockRows(const Plan& plan, const BlockId& block)
    : kv_head(block.kv_head),
      group(plan.shape.num_q_heads / plan.shape.num_kv_heads),
      first_query(block.query_block * plan.queries_per_block),
      num_queries(std::min(plan.queries_per_block, plan.shape.num_queries - first_query)),
      num_rows(num_queries * group) {}

Block::Block(const Plan& plan, const Params& params, const BlockId& block, const Scratch& scratch,
             const State& state) noexcept
    : params_(params),
      num_kv_(plan.shape.num_kv),
      dk_(plan.shape.head_dim_k),
      dv_(plan.shape.head_dim_v),
      kernels_(params.codec->kernels()),
      scratch_(scratch),
      state_(state),
      rows_(plan, block),
      // Copies of what is stored exactly say nothing new.
      has_copies_(params.kv.copy_slots != nullptr &&
                  !(params.codec->keys_are_exact() && params.codec->values_are_exact())),
      integer_keys_(params.kv.k_rows == nullptr && !params.float_path &&
                    !params.codec->keys_are_exact()),
      integer_values_(params.kv.v_rows == nullptr && !params.float_path &&
                      !params.codec->values_are_exact()),
      q_rotated_((load_queries(), params.codec->query_transform(block.kv_head) != nullptr
                                      ? scratch.q_rotated
                                      : scratch.q_raw)),
      mean_(*params.codec, block.kv_head, rows_.num_rows, scratch) {
  if (integer_keys_) quantize_queries();
}

void Block::load_queries() noexcept {
  for (std::int64_t row = 0; row < rows_.num_rows; ++row) {
    const float* const q = params_.q + rows_.query(row) * params_.q_query_stride +
                           rows_.q_head(row) * params_.q_head_stride;
    float* const raw = scratch_.q_raw + row * dk_;
    for (int d = 0; d < dk_; ++d) raw[d] = q[d] * params_.scale;
  }
  const float* const matrix = params_.codec->query_transform(rows_.kv_head);
  if (matrix == nullptr) return;
  kernels_.transform_rows({.x = scratch_.q_raw,
                           .matrix = matrix,
                           .y = scratch_.q_rotated,
                           .num_rows = rows_.num_rows,
                           .x_stride = dk_,
                           .y_stride = dk_,
                           .head_dim = dk_});
}

void Block::quantize_queries() noexcept {
  kernels_.quantize_queries({.q = q_rotated_,
                             .num_rows = rows_.num_rows,
                             .q_stride = dk_,
                             .layout = params_.kv.k.layout,
                             .bytes = scratch_.q_bytes,
                             .scales = scratch_.q_scales,
                             .sums = scratch_.q_sums});
}

std::int64_t Block::page_id(std::int64_t page) const {
  return params_.kv.block_table != nullptr ? params_.kv.block_table[page]
                                           : params_.kv.first_page + page;
}
const std::uint8_t* Block::k_plane(std::int64_t page) const {
  return params_.kv.k.plane(page_id(page), rows_.kv_head);
}
const std::uint8_t* Block::v_plane(std::int64_t page) const {
  return params_.kv.v.plane(page_id(page), rows_.kv_head);
}

void Block::page_positions(std::int64_t page, int num_cells, std::int32_t* positions) const {
  for (int t = 0; t < num_cells; ++t) {
    const std::int64_t cell = page * kPageSize + t;
    positions[t] = params_.kv.cell_positions != nullptr ? params_.kv.cell_positions[cell]
                                                        : static_cast<std::int32_t>(cell);
  }
}

void Block::visit_pages(std::int64_t first_page, std::int64_t last_page) noexcept {
  for (std::int64_t page = first_page; page < last_page; ++page) visit_page(page);
}

void Block::visit_page(std::int64_t page) noexcept {
  const PageMask mask = classify_page(params_, num_kv_, page, rows_.first_query, rows_.num_queries,
                                      has_copies_, scratch_.visible, scratch_.copied);
  if (mask.seen == 0) return;
  if (mask.seen_codes != 0) code_logits(mask, page, scratch_.logits);
  if (mask.seen_copies != 0) {
    copy_logits(mask, page, mask.seen_codes != 0 ? scratch_.copy_logits : scratch_.logits);
    if (mask.seen_codes != 0) {
      for (std::int64_t row = 0; row < rows_.num_rows; ++row) {
        select_where(scratch_.copied[row / rows_.group], scratch_.copy_logits + row * kPageSize,
                     scratch_.logits + row * kPageSize);
      }
    }
  }
  finish_logits(mask, page);
  kernels_.softmax_tile({.logits = scratch_.logits,
                         .max = state_.max,
                         .sum = state_.sum,
                         .rescale = scratch_.rescale,
                         .num_rows = static_cast<int>(rows_.num_rows),
                         .num_tokens = mask.num_cells,
                         .logits_stride = kPageSize});
  rescale_state();
  if (mask.seen_copies == 0) return add_code_values(mask, page);
  if (mask.seen_codes != 0) split_weights(mask);
  add_copy_values(mask, page, mask.seen_codes != 0 ? scratch_.copy_logits : scratch_.logits);
  if (mask.seen_codes != 0) add_code_values(mask, page);
}

void Block::code_logits(const PageMask& mask, std::int64_t page, float* logits) noexcept {
  const PlaneLayout& layout = params_.kv.k.layout;
  const auto num_rows = static_cast<int>(rows_.num_rows);
  if (params_.kv.k_rows != nullptr) {
    const std::int64_t stride = std::int64_t{params_.codec->num_kv_heads()} * dk_;
    kernels_.dot_tile(
        {.q = q_rotated_,
         .k = params_.kv.k_rows + page * kPageSize * stride + std::int64_t{rows_.kv_head} * dk_,
         .logits = logits,
         .num_rows = num_rows,
         .num_tokens = mask.num_cells,
         .head_dim = dk_,
         .q_stride = dk_,
         .k_stride = stride,
         .logits_stride = kPageSize,
         .accumulate = false});
    return;
  }
  const std::uint8_t* const next = has_page(page + 1) ? k_plane(page + 1) : nullptr;
  if (integer_keys_) {
    kernels_.qk_integer({.q = scratch_.q_bytes,
                         .q_scales = scratch_.q_scales,
                         .q_sums = scratch_.q_sums,
                         .plane = k_plane(page),
                         .logits = logits,
                         .num_rows = num_rows,
                         .num_tokens = mask.num_cells,
                         .logits_stride = kPageSize,
                         .layout = layout,
                         .next_plane = next});
  } else if (rows_.num_rows <= kMaxCodeRows || layout.quant.bits == 16) {
    kernels_.qk_codes({.q = q_rotated_,
                       .plane = k_plane(page),
                       .logits = logits,
                       .num_rows = num_rows,
                       .num_tokens = mask.num_cells,
                       .q_stride = dk_,
                       .logits_stride = kPageSize,
                       .layout = layout,
                       .next_plane = next});
  } else {
    kernels_.decode_rows({.plane = k_plane(page),
                          .rows = scratch_.k_tile,
                          .row_stride = dk_,
                          .first = 0,
                          .num_tokens = mask.num_cells,
                          .layout = layout});
    kernels_.dot_tile({.q = q_rotated_,
                       .k = scratch_.k_tile,
                       .logits = logits,
                       .num_rows = static_cast<int>(rows_.num_rows),
                       .num_tokens = mask.num_cells,
                       .head_dim = dk_,
                       .q_stride = dk_,
                       .k_stride = dk_,
                       .logits_stride = kPageSize,
                       .accumulate = false});
  }
  if (!mean_.active()) return;
  std::int32_t positions[kPageSize];
  page_positions(page, mask.num_cells, positions);
  mean_.add(positions, mask.num_cells, mask.seen_codes, logits, scratch_.copy_logits);
}

void Block::copy_logits(const PageMask& mask, std::int64_t page, float* logits) noexcept {
  const ExactRows rows = copies_of_page(params_.kv.k_copies + std::int64_t{rows_.kv_head} * dk_,
                                        std::int64_t{params_.codec->num_kv_heads()} * dk_,
                                        params_.kv.copy_slots + page * kPageSize, mask.seen_copies,
                                        mask.num_cells, dk_, scratch_.copies);
  kernels_.qk_codes({.q = scratch_.q_raw,
                     .plane = rows.plane,
                     .logits = logits,
                     .num_rows = static_cast<int>(rows_.num_rows),
                     .num_tokens = mask.num_cells,
                     .q_stride = dk_,
                     .logits_stride = kPageSize,
                     .layout = exact_layout(dk_),
                     .row_stride_bytes = rows.row_stride_bytes});
}

// Soft cap, mask values, hidden cells, in this order.
void Block::finish_logits(const PageMask& mask, std::int64_t page) noexcept {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  if (params_.soft_cap == 0.0f && mask.uniform && !mask.has_bias) return;
  for (std::int64_t row = 0; row < rows_.num_rows; ++row) {
    float* const logits = scratch_.logits + row * kPageSize;
    if (params_.soft_cap != 0.0f) {
      soft_cap(params_.soft_cap, mask.num_cells, logits);
    }
    if (mask.has_bias) {
      const std::uint16_t* const bias =
          params_.mask_f16 + rows_.query(row) * params_.mask_stride + page * kPageSize;
      const float slope =
          params_.mask_slopes != nullptr ? params_.mask_slopes[rows_.q_head(row)] : 1.0f;
      for (int t = 0; t < mask.num_cells; ++t) logits[t] += slope * float_from_f16(bias[t]);
    }
    keep_where(scratch_.visible[row / rows_.group], kHidden, logits);
  }
}

void Block::rescale_state() noexcept {
  for (std::int64_t row = 0; row < rows_.num_rows; ++row) {
    const float factor = scratch_.rescale[row];
    if (factor == 1.0f) continue;
    float* const codes = state_.out_codes + row * dv_;
    for (int d = 0; d < dv_; ++d) codes[d] *= factor;
    if (!has_copies_) continue;
    float* const copies = state_.out_copies + row * dv_;
    for (int d = 0; d < dv_; ++d) copies[d] *= factor;
    state_.copy_weight[row] *= factor;
  }
}

// Moves the weights of pairs that use the copy from `logits` to `copy_logits`.
void Block::split_weights(const PageMask& mask) noexcept {
  for (std::int64_t row = 0; row < rows_.num_rows; ++row) {
    const std::uint64_t copied = scratch_.copied[row / rows_.group];
    float* const codes = scratch_.logits + row * kPageSize;
    float* const copies = scratch_.copy_logits + row * kPageSize;
    std::memcpy(copies, codes, sizeof(float) * mask.num_cells);
    keep_where(copied, 0.0f, copies);
    keep_where(~copied, 0.0f, codes);
  }
}

void Block::add_code_values(const PageMask& mask, std::int64_t page) noexcept {
  if (params_.kv.v_rows != nullptr) {
    const std::int64_t stride = std::int64_t{params_.codec->num_kv_heads()} * dv_;
    kernels_.accumulate_tile(
        {.p = scratch_.logits,
         .v = params_.kv.v_rows + page * kPageSize * stride + std::int64_t{rows_.kv_head} * dv_,
         .out = state_.out_codes,
         .num_rows = static_cast<int>(rows_.num_rows),
         .num_tokens = mask.num_cells,
         .head_dim = dv_,
         .p_stride = kPageSize,
         .v_stride = stride,
         .out_stride = dv_});
    return;
  }
  const PlaneLayout& layout = params_.kv.v.layout;
  if (integer_values_ || rows_.num_rows <= kMaxCodeRows || layout.quant.bits == 16) {
    const auto accumulate = integer_values_ ? kernels_.pv_integer : kernels_.pv_codes;
    accumulate({.p = scratch_.logits,
                .plane = v_plane(page),
                .out = state_.out_codes,
                .num_rows = static_cast<int>(rows_.num_rows),
                .num_tokens = mask.num_cells,
                .p_stride = kPageSize,
                .out_stride = dv_,
                .layout = layout,
                .next_plane = has_page(page + 1) ? v_plane(page + 1) : nullptr});
    return;
  }
  kernels_.decode_rows({.plane = v_plane(page),
                        .rows = scratch_.v_tile,
                        .row_stride = dv_,
                        .first = 0,
                        .num_tokens = mask.num_cells,
                        .layout = layout});
  // A cell that nobody sees may hold anything, and its weight 0 must not meet a NaN.
  for (std::uint64_t unseen = low_bits(mask.num_cells) & ~mask.seen_codes; unseen != 0;
       unseen &= unseen - 1) {
    std::fill_n(scratch_.v_tile + std::int64_t{std::countr_zero(unseen)} * dv_, dv_, 0.0f);
  }
  kernels_.accumulate_tile({.p = scratch_.logits,
                            .v = scratch_.v_tile,
                            .out = state_.out_codes,
                            .num_rows = static_cast<int>(rows_.num_rows),
                            .num_tokens = mask.num_cells,
                            .head_dim = dv_,
                            .p_stride = kPageSize,
                            .v_stride = dv_,
                            .out_stride = dv_});
}

void Block::add_copy_values(const PageMask& mask, std::int64_t page,
                            const float* weights) noexcept {
  const ExactRows rows = copies_of_page(params_.kv.v_copies + std::int64_t{rows_.kv_head} * dv_,
                                        std::int64_t{params_.codec->num_kv_heads()} * dv_,
                                        params_.kv.copy_slots + page * kPageSize, mask.seen_copies,
                                        mask.num_cells, dv_, scratch_.copies);
  kernels_.pv_codes({.p = weights,
                     .plane = rows.plane,
                     .out = state_.out_copies,
                     .num_rows = static_cast<int>(rows_.num_rows),
                     .num_tokens = mask.num_cells,
                     .p_stride = kPageSize,
                     .out_stride = dv_,
                     .layout = exact_layout(dv_),
                     .row_stride_bytes = rows.row_stride_bytes});
  for (std::int64_t row = 0; row < rows_.num_rows; ++row) {
    float sum = 0;
    for (int t = 0; t < mask.num_cells; ++t) sum += weights[row * kPageSize + t];
    state_.copy_weight[row] += sum;
  }
}

}  // namespace oscar::attention
