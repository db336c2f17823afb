// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/head_loss.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

// A logit after the soft cap, and the derivative of that.
struct Capped {
  float value, slope;
};
SHIFTRT_DEVICE Capped Cap(float logit, float cap) {
  if (cap <= 0) return {logit, 1};
  const float tanh = Tanh(logit / cap);
  return {cap * tanh, 1 - tanh * tanh};
}

// There is one block per token.
struct UpdateLossKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
  struct Args {
    LossChunk chunk;
    LossTerms terms;
    LossState* states;
    float* losses;
  };
  static constexpr int kShared = 5 * SharedBytes<float>(kWarps);

  // The block's largest value; -infinity if there is only NaN, whose sum is then NaN.
  static SHIFTRT_DEVICE float Maximum(const float* logits, int cols, float cap, Shared<float> scratch) {
    float maximum = -Infinity();
    for (int i = Thread(); i < cols; i += kThreads) {
      const float logit = Cap(logits[i], cap).value;
      if (logit > maximum) maximum = logit;
    }
    maximum = WarpMax(maximum);
    if (Lane() == 0) scratch[Warp()] = maximum;
    SyncThreads();
    for (int w = 0; w < kWarps; ++w)
      if (scratch[w] > maximum) maximum = scratch[w];
    return maximum;
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    Shared<float> scratch[5];
    for (Shared<float>& part : scratch) part = arena.Take<float>(kWarps);
    const LossChunk& chunk = args.chunk;
    const int64_t token = Block().x;
    const int first = static_cast<int>(chunk.first), cols = static_cast<int>(chunk.cols);
    const float* const logits = chunk.logits + token * chunk.cols;
    const float* const teacher = chunk.teacher != nullptr ? chunk.teacher + token * chunk.cols : nullptr;
    const bool starts = first == 0;
    LossState state;
    if (!starts) state = args.states[token];

    float maximum = Maximum(logits, cols, chunk.soft_cap, scratch[0]), teacher_maximum = 0;
    if (!starts && state.maximum > maximum) maximum = state.maximum;
    if (teacher != nullptr) {
      teacher_maximum = Maximum(teacher, cols, chunk.soft_cap, scratch[1]);
      if (!starts && state.teacher_maximum > teacher_maximum) teacher_maximum = state.teacher_maximum;
    }
    float sum = 0, teacher_sum = 0, between = 0;
    for (int i = Thread(); i < cols; i += kThreads) {
      const float logit = Cap(logits[i], chunk.soft_cap).value;
      sum += Exp(logit - maximum);
      if (teacher == nullptr) continue;
      const float theirs = Cap(teacher[i], chunk.soft_cap).value, weight = Exp(theirs - teacher_maximum);
      teacher_sum += weight;
      between += weight * (theirs - logit);
    }
    sum = BlockSum<kThreads>(sum, scratch[2]);
    if (teacher != nullptr) {
      teacher_sum = BlockSum<kThreads>(teacher_sum, scratch[3]);
      between = BlockSum<kThreads>(between, scratch[4]);
    }
    if (Thread() != 0) return;

    if (!starts) {
      state.sum *= static_cast<double>(Exp(state.maximum - maximum));
      const auto before = static_cast<double>(Exp(state.teacher_maximum - teacher_maximum));
      state.teacher_sum *= before;
      state.between *= before;
    }
    state.maximum = maximum;
    state.teacher_maximum = teacher_maximum;
    state.sum += static_cast<double>(sum);
    state.teacher_sum += static_cast<double>(teacher_sum);
    state.between += static_cast<double>(between);
    const int target = args.terms.targets[token] - first;
    if (target >= 0 && target < cols) state.target = Cap(logits[target], chunk.soft_cap).value;
    args.states[token] = state;
    if (chunk.first + chunk.cols < chunk.vocab) return;
    const double log_sum = static_cast<double>(maximum) + Log(state.sum);
    double loss = static_cast<double>(args.terms.cross_entropy) * (log_sum - static_cast<double>(state.target));
    if (teacher != nullptr) {
      const double teacher_log_sum = static_cast<double>(teacher_maximum) + Log(state.teacher_sum);
      loss +=
          static_cast<double>(args.terms.divergence) * (state.between / state.teacher_sum - teacher_log_sum + log_sum);
    }
    args.losses[token] = static_cast<float>(loss);
  }
};

// Each thread processes columns Thread(), Thread() + kThreads, ... of a block's share of a token's chunk.
template <typename T>
struct LossGradientKernel {
  static constexpr int kThreads = 256, kPerThread = 4, kColumns = kThreads * kPerThread;
  struct Args {
    LossChunk chunk;
    LossTerms terms;
    const LossState* states;
    T* out;
    int64_t stride;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const LossChunk& chunk = args.chunk;
    const int64_t token = Block().x, row = token * chunk.cols;
    const LossState state = args.states[token];
    const float scale = args.terms.scales[token], cross_entropy = args.terms.cross_entropy;
    const float divergence = chunk.teacher != nullptr ? args.terms.divergence : 0;
    const auto share = static_cast<float>(1 / state.sum);
    const auto teacher_share = static_cast<float>(1 / state.teacher_sum);
    const int target = args.terms.targets[token] - static_cast<int>(chunk.first);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      const int i = Block().y * kColumns + k * kThreads + Thread();
      if (i >= chunk.cols) continue;
      const Capped logit = Cap(chunk.logits[row + i], chunk.soft_cap);
      float gradient = (cross_entropy + divergence) * (Exp(logit.value - state.maximum) * share);
      if (i == target) gradient -= cross_entropy;
      if (chunk.teacher != nullptr) {
        const float theirs = Cap(chunk.teacher[row + i], chunk.soft_cap).value;
        gradient -= divergence * (Exp(theirs - state.teacher_maximum) * teacher_share);
      }
      args.out[token * args.stride + i] = Narrow<T>(gradient * logit.slope * scale);
    }
  }
};

void RequireChunk(const LossChunk& chunk) {
  Require(chunk.cols > 0 && chunk.first + chunk.cols <= chunk.vocab, "the loss of logits",
          "a chunk inside the vocabulary, not one that ends at", chunk.first + chunk.cols);
}

}  // namespace

void UpdateLoss(Stream stream, const LossChunk& chunk, const LossTerms& terms, LossState* states, float* losses) {
  RequireChunk(chunk);
  if (chunk.tokens == 0) return;
  Launch<UpdateLossKernel>(stream, {.x = static_cast<int>(chunk.tokens), .shared_bytes = UpdateLossKernel::kShared},
                           {chunk, terms, states, losses});
}

void LossGradient(Stream stream, const LossChunk& chunk, const LossTerms& terms, const LossState* states,
                  DeviceArray out, int64_t stride) {
  RequireChunk(chunk);
  Require(stride >= chunk.cols, "the gradient of logits", "rows that do not overlap, not rows this far apart", stride);
  if (chunk.tokens == 0) return;
  WithType("the gradient of logits", out.dtype, [&](auto type) {
    using T = decltype(type);
    using Kernel = LossGradientKernel<T>;
    Launch<Kernel>(stream, {.x = static_cast<int>(chunk.tokens), .y = Blocks(chunk.cols, Kernel::kColumns)},
                   {chunk, terms, states, static_cast<T*>(out.data), stride});
  });
}

}  // namespace shiftrt::gpu
