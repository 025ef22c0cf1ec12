#include "reference/codec.h"

#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "format/trellis.h"

namespace oscar::reference {
namespace {

constexpr double kLargestMagnitude = 0x1p120;
// Uniform steps that are optimal for a unit Gaussian (Max 1960, table II), by bits − 2.
constexpr float kGaussianSteps[] = {0.9957f, 0.5860f, 0.3352f};
constexpr float kTrellisStep = 0.5f;

int num_levels(int bits) { return 1 << bits; }

GroupScale affine_scale(std::span<const double> x, int bits) {
  const double min = *std::min_element(x.begin(), x.end());
  const double max = *std::max_element(x.begin(), x.end());
  if (min == max) {
    const double scale = round_to_bf16(std::abs(max));
    const double sign = max > 0 ? 1 : -1;
    return {scale, scale == 0 ? 0 : -sign};
  }
  const double scale = round_to_bf16((max - min) / (num_levels(bits) - 1));
  return {scale, scale == 0 ? 0 : round_to_bf16(-min / scale)};
}

GroupScale rms_scale(std::span<const double> x, double step, double zero) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  const double rms = std::sqrt(sum / static_cast<double>(x.size()));
  return {round_to_bf16(step * rms), zero};
}

int get_bits(const std::uint8_t* bytes, int first_bit, int count) {
  int value = 0;
  for (int i = 0; i < count; ++i) {
    const int bit = first_bit + i;
    value |= ((bytes[bit / 8] >> (bit % 8)) & 1) << i;
  }
  return value;
}

void set_bits(std::uint8_t* bytes, int first_bit, int count, int value) {
  for (int i = 0; i < count; ++i) {
    const int bit = first_bit + i;
    const int mask = 1 << (bit % 8);
    const bool is_set = ((value >> i) & 1) != 0;
    bytes[bit / 8] =
        static_cast<std::uint8_t>(is_set ? bytes[bit / 8] | mask : bytes[bit / 8] & ~mask);
  }
}

double get_bf16(const std::uint8_t* bytes) {
  return bf16_to_float(static_cast<bf16_t>(bytes[0] | bytes[1] << 8));
}

void set_bf16(std::uint8_t* bytes, double value) {
  const bf16_t bits = bf16_from_float(static_cast<float>(value));  // exact
  bytes[0] = static_cast<std::uint8_t>(bits & 0xff);
  bytes[1] = static_cast<std::uint8_t>(bits >> 8);
}

}  // namespace

double round_to_bf16(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  // Eight significant bits, fewer below 2^−126.
  const int exponent = std::max(std::ilogb(value), -126) - 7;
  return std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
}

double clip_threshold(std::span<const float> row, float clip_ratio) {
  std::vector<double> magnitudes(row.size());
  std::transform(row.begin(), row.end(), magnitudes.begin(),
                 [](float value) { return std::abs(double{value}); });
  std::sort(magnitudes.begin(), magnitudes.end());
  const float product = clip_ratio * static_cast<float>(row.size());
  const auto rank =
      std::clamp<std::size_t>(static_cast<std::size_t>(std::ceil(product)), 1, row.size());
  return std::min(magnitudes[rank - 1], kLargestMagnitude);
}

std::vector<double> clip(std::span<const float> row, double threshold) {
  std::vector<double> clipped(row.size());
  std::transform(row.begin(), row.end(), clipped.begin(), [threshold](float value) {
    return std::clamp(double{value}, -threshold, threshold);
  });
  return clipped;
}

double level(double x, double scale, double zero_point) {
  return (scale == 0 ? x : x / scale) + zero_point;
}

GroupScale choose_scale(std::span<const double> clipped, int bits, Codebook codebook) {
  if (codebook == Codebook::kAffine) return affine_scale(clipped, bits);
  if (codebook == Codebook::kTrellis) return rms_scale(clipped, double{kTrellisStep}, 3.5);
  return rms_scale(clipped, double{kGaussianSteps[bits - 2]}, (num_levels(bits) - 1) / 2.0);
}

std::vector<int> trellis_levels(std::span<const int> u, std::span<const int> a) {
  std::vector<int> levels(u.size());
  for (std::size_t c = 0; c < u.size(); ++c) {
    const std::size_t word = c / kTrellisChannels * kTrellisChannels;
    const auto before = [&](std::size_t steps) {
      return u[word + (c - word + kTrellisChannels - steps) % kTrellisChannels];
    };
    levels[c] = 4 * a[c] + 2 * (u[c] ^ before(2)) + before(1);
  }
  return levels;
}

double trellis_cost(std::span<const double> clipped, double scale, std::span<const int> levels) {
  double cost = 0;
  for (std::size_t c = 0; c < clipped.size(); ++c) {
    const double distance = level(clipped[c], scale, 3.5) - levels[c];
    cost += distance * distance;
  }
  return cost;
}

// Every path of a word: 2^16 of them.
std::vector<int> choose_trellis_levels(std::span<const double> clipped, double scale) {
  double costs[kTrellisChannels][4];  // of 2·(u ⊕ u two before) + (u one before), the better a
  for (int t = 0; t < kTrellisChannels; ++t) {
    const double v = level(clipped[static_cast<std::size_t>(t)], scale, 3.5);
    for (int c = 0; c < 4; ++c)
      costs[t][c] = std::min((v - c) * (v - c), (v - c - 4) * (v - c - 4));
  }
  const auto bit = [](int path, int t) {
    return path >> ((t + kTrellisChannels) % kTrellisChannels) & 1;
  };
  const auto lower = [&](int path, int t) {
    return 2 * (bit(path, t) ^ bit(path, t - 2)) + bit(path, t - 1);
  };
  int best_path = 0;
  double best = 0;
  for (int path = 0; path < 1 << kTrellisChannels; ++path) {
    double cost = 0;
    for (int t = 0; t < kTrellisChannels; ++t) cost += costs[t][lower(path, t)];
    if (path == 0 || cost < best) {
      best = cost;
      best_path = path;
    }
  }
  std::vector<int> levels;
  for (int t = 0; t < kTrellisChannels; ++t) {
    const double v = level(clipped[static_cast<std::size_t>(t)], scale, 3.5);
    const int low = lower(best_path, t);
    levels.push_back(v > low + 2 ? low + 4 : low);
  }
  return levels;
}

double least_trellis_cost(std::span<const double> clipped, double scale) {
  return trellis_cost(clipped, scale, choose_trellis_levels(clipped, scale));
}

std::vector<int> choose_codes(std::span<const double> clipped, GroupScale group, int bits) {
  std::vector<int> codes(clipped.size());
  const double top = num_levels(bits) - 1;
  for (std::size_t i = 0; i < clipped.size(); ++i) {
    codes[i] = static_cast<int>(
        std::nearbyint(std::clamp(level(clipped[i], group.scale, group.zero), 0.0, top)));
  }
  return codes;
}

double fit_scale(std::span<const float> exact, std::span<const int> codes, GroupScale group,
                 ScaleFit fit) {
  if (fit == ScaleFit::kPlain) return group.scale;
  double xx = 0, xd = 0, dd = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double decoded = group.scale * (codes[i] - group.zero);
    xx += double{exact[i]} * exact[i];
    xd += exact[i] * decoded;
    dd += decoded * decoded;
  }
  const double factor = fit == ScaleFit::kUnbiased ? xx / xd : xd / dd;
  if (!std::isfinite(factor) || factor <= 0) return group.scale;
  return round_to_bf16(std::min(group.scale * factor, kLargestMagnitude));
}

Row encode(std::span<const float> row, const PlaneLayout& layout, float clip_ratio) {
  const int bits = layout.quant.bits;
  const std::vector<double> clipped = clip(row, clip_threshold(row, clip_ratio));
  const auto group_size = static_cast<std::size_t>(layout.quant.group_size);
  Row result;
  for (std::size_t first = 0; first < row.size(); first += group_size) {
    const std::span<const double> x(clipped.data() + first, group_size);
    const GroupScale group = choose_scale(x, bits, layout.quant.codebook);
    std::vector<int> codes;
    if (layout.quant.codebook == Codebook::kTrellis) {
      for (std::size_t word = 0; word < x.size(); word += kTrellisChannels) {
        const std::vector<int> levels =
            choose_trellis_levels(x.subspan(word, kTrellisChannels), group.scale);
        codes.insert(codes.end(), levels.begin(), levels.end());
      }
    } else {
      codes = choose_codes(x, group, bits);
    }
    result.scales.push_back(
        fit_scale(row.subspan(first, group_size), codes, group, layout.quant.scale_fit));
    result.zeros.push_back(group.zero);
    result.codes.insert(result.codes.end(), codes.begin(), codes.end());
  }
  return result;
}

std::vector<double> decode(const Row& row, const PlaneLayout& layout) {
  std::vector<double> values(row.codes.size());
  for (std::size_t c = 0; c < values.size(); ++c) {
    const std::size_t group = c / static_cast<std::size_t>(layout.quant.group_size);
    values[c] = row.scales[group] * (row.codes[c] - row.zeros[group]);
  }
  return values;
}

Row read_row(const std::uint8_t* plane, const PlaneLayout& layout, int token) {
  const int bits = layout.quant.bits, low_bits = bits == 4 ? 4 : 2;
  const std::uint8_t* bytes = plane + token * layout.code_row_bytes();
  Row row;
  for (int c = 0; c < layout.head_dim; ++c) {
    int code = get_bits(bytes, low_bits * c, low_bits);
    if (bits == 3) code |= get_bits(bytes + layout.head_dim / 4, c, 1) << 2;
    row.codes.push_back(code);
  }
  if (layout.quant.codebook == Codebook::kTrellis) {
    std::vector<int> u, a;
    for (const int code : row.codes) {
      u.push_back(code & 1);
      a.push_back(code >> 1);
    }
    row.codes = trellis_levels(u, a);
  }
  for (int group = 0; group < layout.num_groups(); ++group) {
    const int offset = 2 * (group * kPageSize + token);
    row.scales.push_back(get_bf16(plane + layout.scales_offset() + offset));
    row.zeros.push_back(layout.quant.codebook == Codebook::kAffine
                            ? get_bf16(plane + layout.zeros_offset() + offset)
                            : (num_levels(layout.quant.level_bits()) - 1) / 2.0);
  }
  return row;
}

void write_row(const Row& row, const PlaneLayout& layout, int token, std::uint8_t* plane) {
  const int bits = layout.quant.bits, low_bits = bits == 4 ? 4 : 2;
  std::uint8_t* bytes = plane + token * layout.code_row_bytes();
  for (int c = 0; c < layout.head_dim; ++c) {
    int code = row.codes[static_cast<std::size_t>(c)];
    if (layout.quant.codebook == Codebook::kTrellis) {
      // A channel's u is the lowest bit of the next level in the word.
      const int next =
          c % kTrellisChannels == kTrellisChannels - 1 ? c + 1 - kTrellisChannels : c + 1;
      code = code >> 2 << 1 | (row.codes[static_cast<std::size_t>(next)] & 1);
    }
    set_bits(bytes, low_bits * c, low_bits, code);
    if (bits == 3) set_bits(bytes + layout.head_dim / 4, c, 1, code >> 2);
  }
  for (int group = 0; group < layout.num_groups(); ++group) {
    const int offset = 2 * (group * kPageSize + token);
    const auto index = static_cast<std::size_t>(group);
    set_bf16(plane + layout.scales_offset() + offset, row.scales[index]);
    if (layout.quant.codebook == Codebook::kAffine) {
      set_bf16(plane + layout.zeros_offset() + offset, row.zeros[index]);
    }
  }
}

}  // namespace oscar::reference
