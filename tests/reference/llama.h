// SPDX-License-Identifier: Apache-2.0
// A Llama model in plain C++: float64, loops, one sequence, no cache, no threads. It is the shortest way to read what a
// plan computes, and the engine is tested against it. It takes the weights that the program reads, and runs the blocks,
// the halves of blocks and the adapters of a plan. Biases of queries, keys and values (Qwen2) are there; windows, norms
// of queries and keys, and other embeddings of positions are not.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/widen.h"
#include "models/plan.h"
#include "models/weights.h"

namespace shiftrt::test {

using Row = std::vector<double>;  // the stream of one token, or what is computed of it
using Stream = std::vector<Row>;  // a row per token

class ReferenceLlama {
 public:
  explicit ReferenceLlama(const Weights& weights) : weights_(weights), config_(weights.config) {}

  // The logits of each token (tokens, vocab).
  Stream Logits(std::span<const int32_t> tokens, const DepthPlan& plan) const {
    const std::vector<float> table = Widened(weights_.embedding);
    Stream stream;
    for (const int32_t token : tokens) {
      const auto row = table.begin() + token * config_.hidden;
      stream.emplace_back(row, row + config_.hidden);
    }
    for (const Stage& stage : plan.stages)
      stage.Visit([&](const BlockStage& block) { Block(block, stream); },
                  [&](const AdapterStage& adapter) { Adapter(*adapter.lra, stream); });
    for (Row& h : stream) h = Product(weights_.head, Norm(h, weights_.final_norm));
    return stream;
  }

 private:
  // h += attention(norm(h)), then h += mlp(norm(h)).
  void Block(const BlockStage& stage, Stream& stream) const {
    const BlockWeights& block = TensorsOf(weights_, stage);
    if (RunsAttention(stage.halves)) Attention(block, stream);
    if (!RunsMlp(stage.halves)) return;
    for (Row& h : stream) {
      const Row x = Norm(h, block.post_norm);
      Row gate = Product(block.gate, x);
      const Row up = Product(block.up, x);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      Add(Product(block.down, gate), h);
    }
  }

  // Each query attends to the keys of its own and of earlier positions; a group of query heads shares a key head.
  void Attention(const BlockWeights& block, Stream& stream) const {
    const int64_t dim = config_.head_dim, group = config_.heads / config_.kv_heads;
    Stream keys, values, updates;
    for (size_t position = 0; position < stream.size(); ++position) {
      const Row x = Norm(stream[position], block.input_norm);
      Row query = Product(block.q, x, block.q_bias);
      keys.push_back(Product(block.k, x, block.k_bias));
      values.push_back(Product(block.v, x, block.v_bias));
      Rotate(position, query);
      Rotate(position, keys.back());
      Row mixed(query.size());
      for (int64_t head = 0; head < config_.heads; ++head) {
        const int64_t q = head * dim, kv = head / group * dim;
        Row scores;
        double total = 0;
        for (const Row& key : keys) {
          double dot = 0;
          for (int64_t i = 0; i < dim; ++i) dot += query[q + i] * key[kv + i];
          scores.push_back(std::exp(dot / std::sqrt(static_cast<double>(dim))));
          total += scores.back();
        }
        for (size_t t = 0; t < keys.size(); ++t)
          for (int64_t i = 0; i < dim; ++i) mixed[q + i] += scores[t] / total * values[t][kv + i];
      }
      updates.push_back(Product(block.o, mixed, block.o_bias));
    }
    for (size_t position = 0; position < stream.size(); ++position) Add(updates[position], stream[position]);
  }

  // The rotary embedding: element i of the first half of a head and element i of the second half are one pair, which
  // turns by position / theta^(2 i / dim).
  void Rotate(size_t position, Row& heads) const {
    const int64_t dim = config_.head_dim, half = dim / 2;
    for (size_t head = 0; head < heads.size(); head += dim)
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) *
                             std::pow(config_.rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
        const double a = heads[head + i], b = heads[head + half + i];
        heads[head + i] = a * std::cos(angle) - b * std::sin(angle);
        heads[head + half + i] = a * std::sin(angle) + b * std::cos(angle);
      }
  }

  // h += h A + b, with A = P Q where it has factors.
  static void Adapter(const Lra& lra, Stream& stream) {
    for (Row& h : stream) {
      Row update(lra.b.span().begin(), lra.b.span().end());
      if (lra.low_rank()) {
        AddRowProduct(RowProduct(h, lra.p), lra.q, update);
      } else {
        AddRowProduct(h, lra.a, update);
      }
      Add(update, h);
    }
  }

  // h / rms(h), times the weights of the norm.
  Row Norm(const Row& h, const TensorView& weight) const {
    const std::vector<float> scale = Widened(weight);
    double squares = 0;
    for (const double x : h) squares += x * x;
    const double rms = std::sqrt(squares / static_cast<double>(h.size()) + config_.rms_eps);
    Row out;
    for (size_t i = 0; i < h.size(); ++i) out.push_back(h[i] / rms * scale[i]);
    return out;
  }

  // W x + bias, with W (rows, cols) as a checkpoint has it.
  static Row Product(const TensorView& w, const Row& x, const TensorView& bias = {}) {
    const std::vector<float> values = Widened(w);
    Row y(w.rows());
    if (!bias.empty()) {
      const std::vector<float> start = Widened(bias);
      y.assign(start.begin(), start.end());
    }
    for (int64_t i = 0; i < w.rows(); ++i)
      for (size_t j = 0; j < x.size(); ++j) y[i] += values[i * w.cols() + static_cast<int64_t>(j)] * x[j];
    return y;
  }

  static Row RowProduct(const Row& x, const Matrix<float>& m) {
    Row y(m.cols());
    AddRowProduct(x, m, y);
    return y;
  }
  // y += x M
  static void AddRowProduct(const Row& x, const Matrix<float>& m, Row& y) {
    for (int64_t i = 0; i < m.rows(); ++i)
      for (int64_t j = 0; j < m.cols(); ++j) y[j] += x[i] * m(i, j);
  }
  static void Add(const Row& update, Row& h) {
    for (size_t i = 0; i < h.size(); ++i) h[i] += update[i];
  }

  const Weights& weights_;
  const ModelConfig& config_;
};

}  // namespace shiftrt::test
