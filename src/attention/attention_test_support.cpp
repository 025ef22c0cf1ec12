#include "attention/attention_test_support.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>

namespace oscar::attention::test {
using cache::test::gaussian;
using cache::test::Generator;

std::string Scenario::name() const {
  std::ostringstream text;
  text << "k" << k_bits << "v" << v_bits << " group " << group_size << " codebook " << int(codebook)
       << " transform " << int(transform) << " mean " << int(mean) << " kv_heads " << num_kv_heads
       << " ratio " << group << " dims " << head_dim_k << "/" << head_dim_v << " tokens "
       << num_tokens << " queries " << num_queries << " windows " << sink_tokens << "/"
       << recent_tokens << " permuted " << permuted_cells << " pages " << random_pages
       << " copies in order " << copies_in_order << " causal " << causal << " sliding "
       << sliding_window << " cap " << soft_cap << " mask " << mask << " slopes " << slopes
       << " sinks " << sinks << " first " << first_position << " threads " << num_threads
       << " seed " << seed;
  return text.str();
}

std::vector<const kernels::KernelSet*> runnable_sets() {
  static const std::vector<const kernels::KernelSet*> sets = [] {
    std::vector<const kernels::KernelSet*> found;
    for (const kernels::KernelSet* set : kernels::all_kernel_sets()) {
      if (set->supported()) {
        found.push_back(set);
      } else {
        std::cout << "[ not run  ] kernel set " << set->name << ": this CPU lacks " << set->needs
                  << "\n";
      }
    }
    return found;
  }();
  return sets;
}

Layer::Layer(const Scenario& scenario, const kernels::KernelSet& kernels)
    : scenario_(scenario),
      kernels_(&kernels),
      num_q_heads_(scenario.num_kv_heads * scenario.group) {
  place_tokens();
  make_codec();
  make_rows();
  store();
  make_params();
}

Shape Layer::shape() const {
  return {scenario_.num_queries, num_kv_,
          num_q_heads_,          scenario_.num_kv_heads,
          scenario_.head_dim_k,  scenario_.head_dim_v};
}

void Layer::place_tokens() {
  Generator generator(scenario_.seed);
  const std::int64_t n = scenario_.num_tokens;
  num_kv_ = scenario_.permuted_cells ? n + n / 4 : n;
  std::vector<std::int64_t> cells(num_kv_);
  std::iota(cells.begin(), cells.end(), 0);
  if (scenario_.permuted_cells) std::shuffle(cells.begin(), cells.end(), generator);
  cell_of_token_.assign(cells.begin(), cells.begin() + n);
  cell_positions_.assign(num_kv_, -1);
  for (std::int64_t token = 0; token < n; ++token) {
    cell_positions_[cell_of_token_[token]] =
        static_cast<std::int32_t>(scenario_.first_position + token);
  }
  const std::int64_t num_pages = (num_kv_ + kPageSize - 1) / kPageSize;
  block_table_.resize(num_pages);
  std::iota(block_table_.begin(), block_table_.end(), 1);
  if (scenario_.random_pages) std::shuffle(block_table_.begin(), block_table_.end(), generator);

  // Copies of the sinks and of whatever some query may call recent, in random rows.
  copy_slots_.assign(num_kv_, -1);
  std::vector<std::int32_t> slots(n);
  std::iota(slots.begin(), slots.end(), 0);
  if (!scenario_.copies_in_order) std::shuffle(slots.begin(), slots.end(), generator);
  for (std::int64_t token = 0; token < n; ++token) {
    const bool sink = scenario_.first_position + token < scenario_.sink_tokens;
    const bool recent = token >= n - scenario_.num_queries - scenario_.recent_tokens;
    if (sink || recent) copy_slots_[cell_of_token_[token]] = slots[token];
  }
  for (std::int64_t i = 0; i < scenario_.num_queries; ++i) {
    query_positions_.push_back(static_cast<std::int32_t>(
        scenario_.first_position + std::max<std::int64_t>(0, n - scenario_.num_queries + i)));
  }
}

void Layer::make_codec() {
  const Scenario& s = scenario_;
  codec_ = std::make_unique<cache::LayerCodec>(cache::test::make_codec(
      {.k_quant = {s.k_bits, s.group_size, s.codebook, ScaleFit::kUnbiased},
       .v_quant = {s.v_bits, s.group_size, s.codebook, ScaleFit::kLeastSquares},
       .transform = s.transform,
       .mean = s.mean,
       .num_kv_heads = s.num_kv_heads,
       .head_dim_k = s.head_dim_k,
       .head_dim_v = s.head_dim_v,
       .seed = s.seed + 1},
      static_cast<std::int32_t>(s.first_position + s.num_tokens), *kernels_));
}

void Layer::make_rows() {
  Generator generator(scenario_.seed + 2);
  const Scenario& s = scenario_;
  keys_ = gaussian(s.num_tokens * s.num_kv_heads * s.head_dim_k, 1.0f, &generator);
  values_ = gaussian(s.num_tokens * s.num_kv_heads * s.head_dim_v, 1.0f, &generator);
  queries_ = gaussian(s.num_queries * num_q_heads_ * s.head_dim_k, 1.5f, &generator);
  for (std::int64_t token = 0; token < s.num_tokens; ++token) {
    for (int head = 0; head < s.num_kv_heads; ++head) {
      const float* const mean = codec_->key_mean(head);
      if (mean == nullptr) continue;
      std::vector<float> offset(mean, mean + s.head_dim_k);
      if (codec_->rope() != nullptr)
        codec_->rope()->rotate(offset.data(), static_cast<std::int32_t>(s.first_position + token));
      float* const row = keys_.data() + (token * s.num_kv_heads + head) * s.head_dim_k;
      for (int d = 0; d < s.head_dim_k; ++d) row[d] += offset[d];
    }
  }
}

void Layer::store() {
  const Scenario& s = scenario_;
  const std::int64_t num_pages = std::ssize(block_table_) + 1;  // page 0 belongs to nobody
  const auto view = [&](const PlaneLayout& layout, AlignedBuffer<std::uint8_t>* bytes) {
    *bytes = AlignedBuffer<std::uint8_t>(num_pages * s.num_kv_heads * layout.plane_bytes());
    std::fill_n(bytes->data(), bytes->size(), s.unused_bytes);
    return PlaneView{bytes->data(), s.num_kv_heads * layout.plane_bytes(), layout.plane_bytes(),
                     layout};
  };
  params_.kv.k = view(codec_->k_layout(), &k_bytes_);
  params_.kv.v = view(codec_->v_layout(), &v_bytes_);
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> positions;
  for (std::int64_t token = 0; token < s.num_tokens; ++token) {
    const std::int64_t cell = cell_of_token_[token];
    slots.push_back(std::int64_t{block_table_[cell / kPageSize]} * kPageSize + cell % kPageSize);
    positions.push_back(cell_positions_[cell]);
  }
  codec_->encode_keys(
      {keys_.data(), s.num_tokens, std::int64_t{s.num_kv_heads} * s.head_dim_k, s.head_dim_k},
      positions.data(), slots.data(), params_.kv.k, s.num_threads);
  codec_->encode_values(
      {values_.data(), s.num_tokens, std::int64_t{s.num_kv_heads} * s.head_dim_v, s.head_dim_v},
      slots.data(), params_.kv.v, s.num_threads);

  decoded_keys_.assign(num_kv_ * s.num_kv_heads * s.head_dim_k, 0.0f);
  decoded_values_.assign(num_kv_ * s.num_kv_heads * s.head_dim_v, 0.0f);
  k_copies_.assign(s.num_tokens * s.num_kv_heads * s.head_dim_k, 0xffff);
  v_copies_.assign(s.num_tokens * s.num_kv_heads * s.head_dim_v, 0xffff);
  for (std::int64_t token = 0; token < s.num_tokens; ++token) {
    const std::int64_t cell = cell_of_token_[token];
    codec_->decode_key(slots[token], positions[token], params_.kv.k,
                       decoded_keys_.data() + cell * s.num_kv_heads * s.head_dim_k);
    codec_->decode_value(slots[token], params_.kv.v,
                         decoded_values_.data() + cell * s.num_kv_heads * s.head_dim_v);
    if (copy_slots_[cell] < 0) continue;
    const auto copy = [&](const std::vector<float>& rows, std::int64_t width,
                          std::vector<bf16_t>* copies) {
      std::transform(rows.begin() + token * width, rows.begin() + (token + 1) * width,
                     copies->begin() + copy_slots_[cell] * width, bf16_from_float);
    };
    copy(keys_, std::int64_t{s.num_kv_heads} * s.head_dim_k, &k_copies_);
    copy(values_, std::int64_t{s.num_kv_heads} * s.head_dim_v, &v_copies_);
  }
}

void Layer::make_params() {
  Generator generator(scenario_.seed + 3);
  const Scenario& s = scenario_;
  params_.q = queries_.data();
  params_.q_query_stride = std::int64_t{num_q_heads_} * s.head_dim_k;
  params_.q_head_stride = s.head_dim_k;
  params_.query_positions = query_positions_.data();
  params_.kv.block_table = block_table_.data();
  params_.kv.cell_positions = cell_positions_.data();
  params_.kv.copy_slots = copy_slots_.data();
  params_.kv.k_copies = k_copies_.data();
  params_.kv.v_copies = v_copies_.data();
  params_.codec = codec_.get();
  params_.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim_k));
  params_.soft_cap = s.soft_cap;
  params_.causal = s.causal;
  params_.sliding_window = s.sliding_window;
  params_.sink_tokens = s.sink_tokens;
  params_.recent_tokens = s.recent_tokens;
  params_.float_path = s.float_path;
  if (s.mask) {
    constexpr std::uint16_t kChoices[] = {0, 0, 0xfc00, 0x3800 /* 0.5 */, 0xc000 /* −2 */};
    for (std::int64_t i = 0; i < s.num_queries * num_kv_; ++i) {
      mask_.push_back(i / num_kv_ % 5 == 3 ? 0xfc00 : kChoices[generator() % std::size(kChoices)]);
    }
    params_.mask_f16 = mask_.data();
    params_.mask_stride = num_kv_;
  }
  slopes_ = gaussian(num_q_heads_, 1.0f, &generator);
  sinks_ = gaussian(num_q_heads_, 2.0f, &generator);
  if (s.slopes) params_.mask_slopes = slopes_.data();
  if (s.sinks) params_.sinks = sinks_.data();
}

Result Layer::attend(int num_threads) {
  Result result;
  result.out.assign(scenario_.num_queries * num_q_heads_ * scenario_.head_dim_v,
                    std::numeric_limits<float>::quiet_NaN());
  result.lse.assign(scenario_.num_queries * num_q_heads_, std::numeric_limits<float>::quiet_NaN());
  params_.out = result.out.data();
  params_.out_query_stride = std::int64_t{num_q_heads_} * scenario_.head_dim_v;
  params_.out_head_stride = scenario_.head_dim_v;
  params_.lse = result.lse.data();
  const Plan plan = attention::plan(shape(), num_threads);
  AlignedBuffer<std::uint8_t> workspace(plan.workspace_bytes);
  std::fill_n(workspace.data(), workspace.size(), std::uint8_t{0xff});
  run(plan, params_, workspace.data());
  return result;
}

}  // namespace oscar::attention::test
