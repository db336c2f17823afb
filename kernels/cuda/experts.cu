// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr const char* kOperation = "a choice of experts";

// A warp chooses for a token. Lane l has the experts l, l + 32, ..., kPerLane of them. It finds the largest probability
// `active` times; a choice is then a number of the chosen experts before it, which ascend.
template <int kPerLane>
struct ChooseExpertsKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  struct Args {
    const float* logits;
    int64_t stride, tokens;
    int experts, active;
    bool normalised;
    int32_t* chosen;
    float* weights;
  };
  static SHIFTRT_DEVICE Best BestOf(Best best) {
    for (int step = kWarpSize / 2; step > 0; step /= 2)
      best = Better(best, {ShuffleXor(best.value, step), ShuffleXor(best.index, step)});
    return best;
  }
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t token = static_cast<int64_t>(Block().x) * kWarps + Warp();
    if (token >= args.tokens) return;
    // A NaN becomes infinity, as a probability and as an order.
    float logits[kPerLane], largest = -Infinity();
#pragma unroll
    for (int r = 0; r < kPerLane; ++r) {
      const int expert = Lane() + r * kWarpSize;
      logits[r] = expert < args.experts ? args.logits[token * args.stride + expert] : -Infinity();
      if (logits[r] != logits[r]) logits[r] = Infinity();
      largest = Larger(largest, logits[r]);
    }
    largest = WarpMax(largest);
    float sum = 0;
    uint32_t left = 0;  // experts of the lane that are not chosen
#pragma unroll
    for (int r = 0; r < kPerLane; ++r) {
      if (Lane() + r * kWarpSize >= args.experts) continue;
      left |= 1u << r;
      sum += Exp(logits[r] - largest);
    }
    sum = WarpSum(sum);
    float chosen_logit = 0;
    int chosen = 0;  // lane i has the i-th choice
    for (int i = 0; i < args.active; ++i) {
      Best best{-Infinity(), args.experts};
#pragma unroll
      for (int r = 0; r < kPerLane; ++r)
        if ((left >> r & 1) != 0) best = Better(best, {logits[r], Lane() + r * kWarpSize});
      best = BestOf(best);
      if (best.index % kWarpSize == Lane()) left &= ~(1u << best.index / kWarpSize);
      if (Lane() != i) continue;
      chosen = best.index;
      chosen_logit = best.value;
    }
    int before = 0;
    float total = 0;
    const float p = Lane() < args.active ? Quotient(Exp(chosen_logit - largest), sum) : 0;
    for (int i = 0; i < args.active; ++i) {
      before += Shuffle(chosen, i) < chosen ? 1 : 0;
      total += Shuffle(p, i);
    }
    if (Lane() >= args.active) return;
    const int64_t at = token * args.active + before;
    args.chosen[at] = chosen;
    args.weights[at] = args.normalised ? Quotient(p, total) : p;
  }
};

// A warp has a token, and lane i its i-th choice. With p the softmax and S the sum of p over the choices, a weight is p
// or p / S. So dp = dw, or (dw - sum(dw w)) / S, for chosen experts and 0 for others; and dlogits = p (dp - sum(dp p)).
struct ChooseExpertsGradientKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  struct Args {
    float* logits;
    int64_t stride, tokens;
    int experts, active;
    bool normalised;
    const int32_t* chosen;
    const float* dweights;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t token = static_cast<int64_t>(Block().x) * kWarps + Warp();
    if (token >= args.tokens) return;
    float* const logits = args.logits + token * args.stride;
    float largest = -Infinity(), all = 0;
    for (int e = Lane(); e < args.experts; e += kWarpSize) largest = Larger(largest, logits[e]);
    largest = WarpMax(largest);
    for (int e = Lane(); e < args.experts; e += kWarpSize) all += Exp(logits[e] - largest);
    all = WarpSum(all);
    const bool chooses = Lane() < args.active;
    const int64_t at = token * args.active + Lane();
    const int chosen = chooses ? args.chosen[at] : 0;
    const float p = chooses ? Quotient(Exp(logits[chosen] - largest), all) : 0;
    float dp = chooses ? args.dweights[at] : 0;
    if (args.normalised) {
      const float total = WarpSum(p), mean = WarpSum(dp * Quotient(p, total));
      dp = chooses ? Quotient(dp - mean, total) : 0;
    }
    const float sum = WarpSum(dp * p);
    SyncWarp();  // all have read the logits of their choices
    for (int e = Lane(); e < args.experts; e += kWarpSize) logits[e] = -Quotient(Exp(logits[e] - largest), all) * sum;
    SyncWarp();
    if (chooses) logits[chosen] = p * (dp - sum);
  }
};

// A thread has eight columns of a token.
template <bool kWide>
struct SumExpertsKernel {
  static constexpr int kThreads = 128;
  struct Args {
    ExpertSum sum;
    float* to;
    int64_t stride;
    int cols;
    bool accumulate;
  };
  static SHIFTRT_DEVICE void Add(const float* row, int col, int count, float weight, float (&total)[8]) {
    float values[8];
    Read<kWide>(row + col, count, values);
    for (int j = 0; j < 8; ++j) total[j] += weight * values[j];
  }
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t token = Block().x;
    const int col = 8 * (Block().y * kThreads + Thread());
    if (col >= args.cols) return;
    const int count = args.cols - col < 8 ? args.cols - col : 8;
    const ExpertSum& sum = args.sum;
    float total[8] = {};
    for (int i = 0; i < sum.active; ++i) {
      const int64_t at = token * sum.active + i, slot = sum.slots != nullptr ? sum.slots[at] : at;
      Add(sum.rows + slot * args.cols, col, count, sum.weights[at], total);
      if (sum.bias != nullptr)
        Add(sum.bias + static_cast<int64_t>(sum.experts[at]) * args.cols, col, count, sum.weights[at], total);
    }
    if (sum.shared != nullptr) {
      const float weight = Quotient(1.0f, 1 + Exp(-sum.shared_gate[token]));
      Add(sum.shared + token * args.cols, col, count, weight, total);
    }
    float* const to = args.to + token * args.stride + col;
    if (args.accumulate) {
      float before[8];
      Read<kWide>(to, count, before);
      for (int j = 0; j < 8; ++j) total[j] += before[j];
    }
    Write<kWide>(to, count, total);
  }
};

// A thread has eight units of a slot.
template <typename T>
struct ActivateExpertsKernel {
  static constexpr int kThreads = 128;
  struct Args {
    ClampedSwiGlu unit;
    const T* gate_up;
    const float* bias;
    const int32_t* experts;
    T* to;
    int units;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t slot = Block().x;
    const int col = 8 * (Block().y * kThreads + Thread());
    if (col >= args.units) return;
    const T* const gate = args.gate_up + slot * 2 * args.units + col;
    float gates[8], ups[8];
    Load8(gate, gates);
    Load8(gate + args.units, ups);
    if (args.bias != nullptr) {
      const float* const bias = args.bias + static_cast<int64_t>(args.experts[slot]) * 2 * args.units + col;
      float more[8];
      Load8(bias, more);
      for (int j = 0; j < 8; ++j) gates[j] += more[j];
      Load8(bias + args.units, more);
      for (int j = 0; j < 8; ++j) ups[j] += more[j];
    }
    for (int j = 0; j < 8; ++j) gates[j] = ClampedUnit(args.unit, gates[j], ups[j]);
    Store8(args.to + slot * args.units + col, gates);
  }
};

}  // namespace

void ActivateExperts(Stream stream, const ClampedSwiGlu& unit, ConstDeviceArray gate_up, const float* bias,
                     const int32_t* experts, int64_t slots, int64_t units, DeviceArray to) {
  Require(units % 8 == 0, "a unit of experts", "units that are a multiple of 8, not", units);
  Require(gate_up.dtype == to.dtype, "a unit of experts", "one type for input and output, not bytes",
          static_cast<int64_t>(SizeOf(to.dtype)));
  if (slots == 0) return;
  WithType("a unit of experts", to.dtype, [&](auto type) {
    using T = decltype(type);
    using Kernel = ActivateExpertsKernel<T>;
    Launch<Kernel>(
        stream, {.x = static_cast<int>(slots), .y = Blocks(units, 8 * Kernel::kThreads)},
        {unit, static_cast<const T*>(gate_up.data), bias, experts, static_cast<T*>(to.data), static_cast<int>(units)});
  });
}

void ChooseExperts(Stream stream, MatrixView<const float> logits, int64_t active, bool normalised, int32_t* experts,
                   float* weights) {
  Require(logits.cols <= kMostExperts, kOperation, "at most 1024 experts", logits.cols);
  Require(active >= 1 && active <= logits.cols && active <= kMostActiveExperts, kOperation,
          "1 to 32 of the experts, not", active);
  if (logits.rows == 0) return;
  const auto launch = [&](auto kernel) {
    using Kernel = decltype(kernel);
    Launch<Kernel>(stream, {.x = Blocks(logits.rows, Kernel::kWarps)},
                   {logits.data, logits.stride, logits.rows, static_cast<int>(logits.cols), static_cast<int>(active),
                    normalised, experts, weights});
  };
  if (logits.cols <= 4 * kWarpSize) return launch(ChooseExpertsKernel<4>());
  if (logits.cols <= 16 * kWarpSize) return launch(ChooseExpertsKernel<16>());
  launch(ChooseExpertsKernel<32>());
}

void ChooseExpertsGradient(Stream stream, const int32_t* experts, const float* dweights, int64_t active,
                           bool normalised, MatrixView<float> logits) {
  Require(active >= 1 && active <= logits.cols && active <= kMostActiveExperts, kOperation,
          "1 to 32 of the experts, not", active);
  if (logits.rows == 0) return;
  using Kernel = ChooseExpertsGradientKernel;
  Launch<Kernel>(stream, {.x = Blocks(logits.rows, Kernel::kWarps)},
                 {logits.data, logits.stride, logits.rows, static_cast<int>(logits.cols), static_cast<int>(active),
                  normalised, experts, dweights});
}

void SumExperts(Stream stream, const ExpertSum& sum, bool accumulate, MatrixView<float> to) {
  if (to.rows == 0 || to.cols == 0) return;
  const int cols = static_cast<int>(to.cols);
  const auto launch = [&](auto kernel) {
    using Kernel = decltype(kernel);
    Launch<Kernel>(stream, {.x = static_cast<int>(to.rows), .y = Blocks(to.cols, 8 * Kernel::kThreads)},
                   {sum, to.data, to.stride, cols, accumulate});
  };
  const MatrixView<const float> rows(sum.rows, 1, to.cols), shared(sum.shared, 1, to.cols), bias(sum.bias, 1, to.cols);
  if (cols % 8 == 0 && IsWide(to) && IsWide(rows) && IsWide(shared) && IsWide(bias))
    return launch(SumExpertsKernel<true>());
  launch(SumExpertsKernel<false>());
}

}  // namespace shiftrt::gpu
