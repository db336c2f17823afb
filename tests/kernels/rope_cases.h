// SPDX-License-Identifier: Apache-2.0
// The rotation of queries and keys, its transpose, and the steps that a GPU computes with it: biases and norms of
// heads.
#pragma once

#include <string>

#include "tests/kernels/exact.h"

namespace shiftrt::test {

struct RopeCase {
  int64_t heads, kv_heads, head_dim;
  bool biased = false, normed = false;
  int64_t rotary_dim = 0;  // the elements of a head that are rotated; 0: all
  bool interleaved = false;
  float scale = 1;        // a factor on cosine and sine
  bool scaled = false;    // queries have a scale that depends on the position
  double base = 500'000;  // frequency i is base^(-2 i / rotary_dim)

  int64_t rotary() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  std::string Name() const {
    return fmt::format("{} + {} heads of {}{}{}, {} rotated{}, scale {}{}", heads, kv_heads, head_dim,
                       biased ? ", biased" : "", normed ? ", normed" : "", rotary(), interleaved ? " in pairs" : "",
                       scale, scaled ? ", scaled queries" : "");
  }
};

inline std::vector<RopeCase> RopeCases() {
  std::vector<RopeCase> cases = {{2, 1, 64},
                                 {3, 3, 80, true},
                                 {6, 2, 96, false, true},
                                 {4, 1, 128, true, true},
                                 {2, 1, 256, true, true},
                                 {7, 1, 64, true},
                                 {4, 2, 128, true, true},
                                 {4, 2, 96, true, true}};
  for (RopeCase& c : cases) c.scale = 1.25f;
  for (const int64_t head_dim : {2, 4, 6, 64, 80, 128})
    for (const int64_t heads : {1, 2, 3})
      for (const float scale : {1.0f, 1.3f})
        cases.push_back({.heads = heads, .kv_heads = 0, .head_dim = head_dim, .scale = scale});
  for (const int64_t rotary : {2, 4, 8})
    for (const bool interleaved : {false, true})
      for (const bool scaled : {false, true})
        cases.push_back({.heads = 2,
                         .kv_heads = 1,
                         .head_dim = 8,
                         .rotary_dim = rotary,
                         .interleaved = interleaved,
                         .scale = 1.3f,
                         .scaled = scaled});
  // Pairs that a GPU rotates eight at a time, and with a rotary_dim of 8 one by one.
  for (const int64_t rotary : {8, 32, 64, 96})
    for (const bool interleaved : {false, true})
      for (const bool normed : {false, true})
        cases.push_back({.heads = 5,
                         .kv_heads = 1,
                         .head_dim = 96,
                         .biased = true,
                         .normed = normed,
                         .rotary_dim = rotary,
                         .interleaved = interleaved,
                         .scaled = true});
  cases.push_back({.heads = 3, .kv_heads = 0, .head_dim = 80, .scale = 1.25f, .base = 0.01});  // frequencies above 1
  return cases;
}

// Positions out of order, odd, large and repeated.
constexpr int64_t kRopePositions[] = {5, 0, 9, 1, 3, 7, 2, 7, 8, 1023, 4097, 39'999, 131'071, 9'999'991};

// The inputs of a case at the positions below `limit`, and its results in float64.
struct RopeProblem {
  explicit RopeProblem(const RopeCase& c, int64_t limit, DType type = DType::kFloat32)
      : c(c),
        bias(c.biased ? Drawn(width(), 2) : std::vector<double>(width())),
        q_norm(c.normed ? Drawn(c.head_dim, 3) : std::vector<double>(c.head_dim, 1.0)),
        k_norm(c.normed ? Drawn(c.head_dim, 4) : std::vector<double>(c.head_dim, 1.0)),
        frequencies(c.head_dim / 2, 0.0f) {
    for (const int64_t position : kRopePositions)
      if (position < limit) positions.push_back(position);
    qkv = Drawn(tokens() * width(), 1, 1, type);
    for (int64_t i = 0; i < c.rotary() / 2; ++i)
      frequencies[i] =
          static_cast<float>(std::pow(c.base, -2 * static_cast<double>(i) / static_cast<double>(c.rotary())));
  }
  int64_t tokens() const { return std::ssize(positions); }
  int64_t all_heads() const { return c.heads + 2 * c.kv_heads; }
  int64_t width() const { return all_heads() * c.head_dim; }
  // The scale of a query at a position.
  float QueryScale(int64_t position) const { return c.scaled ? 1 + 0.25f * static_cast<float>(position % 5) : 1; }

  // (tokens, width): queries, keys and values. `back`: rotated by the opposite angles. Angles are in extended
  // precision.
  std::vector<Exact> Exactly(bool back) const {
    std::vector<Exact> out;
    const int64_t half = c.rotary() / 2;
    for (int64_t t = 0; t < tokens(); ++t) {
      for (int64_t head = 0; head < all_heads(); ++head) {
        const bool query = head < c.heads, value = head >= c.heads + c.kv_heads;
        std::vector<Exact> x(c.head_dim);
        double squares = 0;
        for (int64_t i = 0; i < c.head_dim; ++i) {
          x[i].Add(qkv[t * width() + head * c.head_dim + i]);
          x[i].Add(bias[head * c.head_dim + i]);
          squares += x[i].value * x[i].value / static_cast<double>(c.head_dim);
        }
        for (int64_t i = 0; c.normed && !value && i < c.head_dim; ++i) {
          const double factor = (query ? q_norm : k_norm)[i] / std::sqrt(squares + 1e-6);
          x[i] = {x[i].value * factor, x[i].size * std::abs(factor)};
        }
        for (int64_t i = 0; !value && i < half; ++i) {
          const long double angle = static_cast<long double>(positions[t]) * frequencies[i];
          const auto cosine = static_cast<double>(c.scale * std::cos(angle)),
                     sine = static_cast<double>((back ? -c.scale : c.scale) * std::sin(angle));
          Exact &first = x[c.interleaved ? 2 * i : i], &second = x[c.interleaved ? 2 * i + 1 : i + half];
          const Exact a = first, b = second;
          first = {a.value * cosine - b.value * sine, a.size * std::abs(cosine) + b.size * std::abs(sine)};
          second = {b.value * cosine + a.value * sine, b.size * std::abs(cosine) + a.size * std::abs(sine)};
        }
        const double factor = query ? QueryScale(positions[t]) : 1;
        for (const Exact& exact : x) out.push_back({factor * exact.value, factor * exact.size});
      }
    }
    return out;
  }

  RopeCase c;
  std::vector<int64_t> positions;
  std::vector<double> qkv, bias, q_norm, k_norm;
  std::vector<float> frequencies;  // (head_dim / 2), 0 where there is no rotation
};

// The columns `first` .. `first` + `cols` - 1 of a dense matrix.
template <typename T>
std::vector<T> Columns(const std::vector<T>& all, int64_t width, int64_t first, int64_t cols) {
  std::vector<T> part;
  for (auto row = all.begin(); row != all.end(); row += width) part.insert(part.end(), row + first, row + first + cols);
  return part;
}

}  // namespace shiftrt::test
