#include "cuda/testing/random_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace oscar::cuda::testing {
namespace {

constexpr bf16_t kNan = 0x7fc0;
constexpr float kRopeBase = 10000.0f;

void put_half(std::uint8_t* p, bf16_t bits) {
  p[0] = static_cast<std::uint8_t>(bits);
  p[1] = static_cast<std::uint8_t>(bits >> 8);
}

// Scales around 0.7 / spread of the codes, zero points around the middle; NaN for tokens beyond.
void fill_plane(const DevicePlane& plane, int num_tokens, float amplitude, std::mt19937& random,
                std::uint8_t* bytes) {
  std::uniform_real_distribution<float> unit(0.0f, 1.0f);
  for (int i = 0; i < plane.code_bytes(); ++i) bytes[i] = static_cast<std::uint8_t>(random());
  const float levels = static_cast<float>((1 << plane.level_bits()) - 1);
  for (int token = 0; token < kPageTokens; ++token) {
    for (int group = 0; group < plane.num_groups(); ++group) {
      const bool is_written = token < num_tokens;
      const float scale = amplitude * 3 / levels * (0.4f + 0.6f * unit(random));
      const float zero = levels * (0.5f + 0.2f * (unit(random) - 0.5f));
      put_half(bytes + plane.scale_offset(group, token),
               is_written ? bf16_from_float(scale) : kNan);
      if (plane.affine) {
        put_half(bytes + plane.zero_offset(group, token),
                 is_written ? bf16_from_float(zero) : kNan);
      }
    }
  }
}

std::vector<bf16_t> normal_rows(std::size_t size, float spread, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<bf16_t> rows(size);
  for (bf16_t& value : rows) value = bf16_from_float(normal(random));
  return rows;
}

}  // namespace

std::string CaseSpec::name() const {
  std::string text = "d" + std::to_string(head_dim) + " k" + std::to_string(key_bits) + "v" +
                     std::to_string(value_bits) + " " + codebook_name(codebook) + "/" +
                     codebook_name(value_codebook.value_or(codebook)) + " group " +
                     std::to_string(group_size) + " heads " + std::to_string(num_q_heads) + "/" +
                     std::to_string(num_kv_heads) + " queries " + std::to_string(num_queries) +
                     " window " + std::to_string(has_copies ? sink_tokens : -1) + "+" +
                     std::to_string(recent_tokens) + " sliding " + std::to_string(sliding_window) +
                     " cap " + std::to_string(soft_cap) + " sinks " + std::to_string(has_sinks) +
                     " mean " + std::to_string(has_mean ? num_mean_pairs() : 0) + " seed " +
                     std::to_string(seed) + " lengths";
  for (const std::int32_t length : lengths) text += " " + std::to_string(length);
  return text;
}

PlaneLayout CaseSpec::layout(int bits, Codebook codes) const {
  return {head_dim, {bits, group_size > 0 ? group_size : std::min(head_dim, 128), codes}};
}

AttendShape CaseSpec::shape() const {
  AttendShape shape;
  shape.num_seqs = static_cast<int>(lengths.size());
  shape.num_queries = num_queries;
  shape.num_q_heads = num_q_heads;
  shape.num_kv_heads = num_kv_heads;
  shape.key = layout(key_bits, codebook);
  shape.value = layout(value_bits, value_codebook.value_or(codebook));
  shape.max_seq_len = std::max(1, *std::max_element(lengths.begin(), lengths.end()));
  shape.sink_tokens = sink_tokens;
  shape.recent_tokens = recent_tokens;
  shape.sliding_window = sliding_window;
  shape.has_copies = has_copies;
  shape.has_mean = has_mean;
  shape.mean_pairs = has_mean ? num_mean_pairs() : 0;
  return shape;
}

RandomCase::RandomCase(const CaseSpec& spec) : spec_(spec) { fill(); }

void RandomCase::fill() {
  std::mt19937 random(spec_.seed);
  const AttendShape shape = spec_.shape();
  AttendParams& p = params_;
  p.key = device_plane(shape.key, Side::kKey);
  p.value = device_plane(shape.value, Side::kValue);
  p.num_seqs = shape.num_seqs;
  p.num_queries = spec_.num_queries;
  p.num_q_heads = spec_.num_q_heads;
  p.num_kv_heads = spec_.num_kv_heads;
  p.scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
  p.soft_cap = spec_.soft_cap;
  p.sliding_window = spec_.sliding_window;
  p.sink_tokens = spec_.sink_tokens;
  p.recent_tokens = spec_.recent_tokens;

  const int run_bytes = p.key.plane_bytes() + p.value.plane_bytes();
  max_pages_ = (shape.max_seq_len + kPageTokens - 1) / kPageTokens;
  num_pages_ = max_pages_ * (spec_.shares_pages ? 1 : shape.num_seqs) + 1;
  p.head_stride_bytes = run_bytes;
  p.page_stride_bytes = std::int64_t{run_bytes} * spec_.num_kv_heads;
  p.num_pages = num_pages_;
  p.block_table_stride = max_pages_ + 1;
  shuffle(spec_.lengths, spec_.seed);

  const std::size_t rows =
      std::size_t(shape.num_seqs) * std::size_t(spec_.num_queries) * std::size_t(spec_.num_q_heads);
  q_ = DeviceBuffer<bf16_t>(
      normal_rows(rows * std::size_t(spec_.head_dim), spec_.query_spread, random));
  out_ = DeviceBuffer<bf16_t>(rows * std::size_t(spec_.head_dim));
  lse_ = DeviceBuffer<float>(rows);
  p.q = q_.data();
  p.out = out_.data();
  p.lse = lse_.data();
  p.q_token_stride = p.out_token_stride = std::int64_t{spec_.num_q_heads} * spec_.head_dim;
  if (spec_.has_raw_queries) {
    // Rows further apart, as queries beside keys and values are.
    p.raw_q_token_stride = p.q_token_stride + 3 * spec_.head_dim;
    raw_q_ = DeviceBuffer<bf16_t>(
        normal_rows(rows / std::size_t(spec_.num_q_heads) * std::size_t(p.raw_q_token_stride),
                    spec_.query_spread, random));
    p.raw_q = raw_q_.data();
  }
  if (spec_.has_sinks) {
    std::vector<float> sinks(std::size_t(spec_.num_q_heads));
    std::normal_distribution<float> normal(2.0f, 2.0f);
    for (float& sink : sinks) sink = normal(random);
    sinks_ = DeviceBuffer<float>(sinks);
    p.learned_sinks = sinks_.data();
  }
  if (spec_.has_mean) {
    const int pairs = spec_.num_mean_pairs();
    std::normal_distribution<float> normal(0.0f, spec_.mean_spread);
    std::vector<float> coefficients(rows * std::size_t(2 * pairs + 1));
    for (float& c : coefficients) c = normal(random);
    std::vector<float> tile(std::size_t(kPageTokens * pairs * 2));
    std::vector<float> start(std::size_t(max_pages_ * pairs * 2));
    for (int f = 0; f < pairs; ++f) {
      const double w = std::pow(kRopeBase, -static_cast<double>(f) / pairs);
      const auto put = [&](std::vector<float>& table, std::int64_t row, double position) {
        table[std::size_t((row * pairs + f) * 2)] = static_cast<float>(std::cos(w * position));
        table[std::size_t((row * pairs + f) * 2 + 1)] = static_cast<float>(std::sin(w * position));
      };
      for (int lo = 0; lo < kPageTokens; ++lo) put(tile, lo, lo);
      for (std::int64_t page = 0; page < max_pages_; ++page) {
        put(start, page, static_cast<double>(page * kPageTokens));
      }
    }
    coefficients_ = DeviceBuffer<float>(coefficients);
    tile_ = DeviceBuffer<float>(tile);
    start_ = DeviceBuffer<float>(start);
    p.mean = {coefficients_.data(), tile_.data(), start_.data(), pairs};
  }
}

void RandomCase::shuffle(const std::vector<std::int32_t>& lengths, unsigned seed) {
  std::mt19937 random(seed);
  AttendParams& p = params_;
  const std::size_t num_seqs = lengths.size();
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_pages_));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  // Entries beyond a sequence's pages are out of range on purpose: nothing may read them.
  std::vector<std::int32_t> table(num_seqs * std::size_t(p.block_table_stride), 1 << 30);
  std::vector<std::uint8_t> pages(std::size_t(num_pages_ * p.page_stride_bytes), 0xff);
  std::size_t next = 0;
  const std::size_t num_filled = spec_.shares_pages ? 1 : num_seqs;
  for (std::size_t seq = 0; seq < num_filled; ++seq) {
    for (std::int64_t page = 0; page * kPageTokens < lengths[seq]; ++page) {
      const std::int32_t id = order[next++];
      table[seq * std::size_t(p.block_table_stride) + std::size_t(page)] = id;
      const int num_tokens =
          static_cast<int>(std::min<std::int64_t>(kPageTokens, lengths[seq] - page * kPageTokens));
      for (int head = 0; head < p.num_kv_heads; ++head) {
        std::uint8_t* run = pages.data() + id * p.page_stride_bytes + head * p.head_stride_bytes;
        fill_plane(p.key, num_tokens, 1.0f, random, run);
        fill_plane(p.value, num_tokens, spec_.value_scale, random, run + p.key.plane_bytes());
      }
    }
  }
  for (std::size_t seq = num_filled; seq < num_seqs; ++seq) {
    std::copy_n(table.begin(), p.block_table_stride,
                table.begin() + static_cast<std::ptrdiff_t>(seq) * p.block_table_stride);
  }
  if (pages_.size() == 0) {
    pages_ = DeviceBuffer<std::uint8_t>(pages.size());
    table_ = DeviceBuffer<std::int32_t>(table.size());
    lengths_ = DeviceBuffer<std::int32_t>(num_seqs);
  }
  pages_.upload(pages);
  table_.upload(table);
  lengths_.upload(lengths);
  p.pages = pages_.data();
  p.block_table = table_.data();
  p.seq_lens = lengths_.data();
  if (!spec_.has_copies) return;

  const std::int32_t ring = spec_.recent_tokens + spec_.num_queries;
  const int rows = spec_.sink_tokens + ring;
  std::vector<bf16_t> copies(
      num_seqs * std::size_t(p.num_kv_heads) * 2 * std::size_t(rows) * std::size_t(spec_.head_dim),
      kNan);
  std::vector<std::int32_t> blocks(num_seqs);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  for (std::size_t seq = 0; seq < num_seqs; ++seq) {
    // Every third sequence has no copies: its tokens are codes.
    blocks[seq] = seq % 3 == 2 ? -1 : static_cast<std::int32_t>(num_seqs - 1 - seq);
    if (blocks[seq] < 0) continue;
    for (std::int32_t token = 0; token < lengths[seq]; ++token) {
      const bool is_sink = token < spec_.sink_tokens;
      if (!is_sink && token < lengths[seq] - ring) continue;
      const int row = is_sink ? token : spec_.sink_tokens + token % ring;
      for (int plane = 0; plane < 2 * p.num_kv_heads; ++plane) {
        const std::size_t first =
            ((std::size_t(blocks[seq]) * std::size_t(p.num_kv_heads) * 2 + std::size_t(plane)) *
                 std::size_t(rows) +
             std::size_t(row)) *
            std::size_t(spec_.head_dim);
        const float amplitude = plane % 2 ? spec_.value_scale : 1.0f;
        for (int d = 0; d < spec_.head_dim; ++d) {
          copies[first + std::size_t(d)] = bf16_from_float(amplitude * normal(random));
        }
      }
    }
  }
  if (copies_.size() == 0) {
    copies_ = DeviceBuffer<bf16_t>(copies.size());
    copy_blocks_ = DeviceBuffer<std::int32_t>(blocks.size());
  }
  copies_.upload(copies);
  copy_blocks_.upload(blocks);
  p.copies = {copies_.data(), copy_blocks_.data(), spec_.sink_tokens, ring};
}

void RandomCase::poison_results() {
  out_.fill(0xff);
  lse_.fill(0xff);
}

std::vector<float> RandomCase::out() const {
  const std::vector<bf16_t> bits = out_.download();
  std::vector<float> values(bits.size());
  std::transform(bits.begin(), bits.end(), values.begin(), bf16_to_float);
  return values;
}

double relative_error(const std::vector<float>& a, const std::vector<double>& b) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

}  // namespace oscar::cuda::testing
