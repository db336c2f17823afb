// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rmsnorm_gradient.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr int kThreadsPerBlock = 256;

// A matrix of groups of adjacent columns.
template <typename T>
struct Groups {
  T* data;
  int64_t stride;
  int per_row, n;

  SHIFTRT_DEVICE T* At(int64_t group) const { return data + group / per_row * stride + group % per_row * n; }
};
template <typename T>
Groups<T> GroupsOf(const MatrixView<T>& view, int64_t n) {
  return {view.data, view.stride, static_cast<int>(view.cols / n), static_cast<int>(n)};
}

// kLanes threads process a group: a warp if it is short, otherwise the block.
template <int kLanes>
struct Team {
  static constexpr int kPerBlock = kThreadsPerBlock / kLanes;
  static constexpr int kScratch = kLanes == kWarpSize ? 0 : kThreadsPerBlock / kWarpSize;

  static SHIFTRT_DEVICE int64_t Group() { return static_cast<int64_t>(Block().x) * kPerBlock + Thread() / kLanes; }
  static SHIFTRT_DEVICE int Member() { return Thread() % kLanes; }
  // Every member gets the sum. There must be a barrier between two uses of `scratch`.
  static SHIFTRT_DEVICE float Sum(float value, Shared<float> scratch) {
    if constexpr (kLanes == kWarpSize) return WarpSum(value);
    return BlockSum<kThreadsPerBlock>(value, scratch);
  }
};

// The mean of a group that is centred, otherwise 0.
template <int kLanes>
SHIFTRT_DEVICE float MeanOf(bool centred, const float* x, int n, Shared<float> scratch) {
  if (!centred) return 0;
  float sum = 0;
  for (int i = Team<kLanes>::Member(); i < n; i += kLanes) sum += x[i];
  return Team<kLanes>::Sum(sum, scratch) / static_cast<float>(n);
}

SHIFTRT_DEVICE float ScaleOf(float squares, int n, float eps) {
  return ReciprocalSqrt(squares / static_cast<float>(n) + eps);
}

// With kScalesOnly, `scales` (groups) = 1 / sqrt(mean(x^2) + eps), the means of groups that are centred behind them,
// and nothing else is written.
template <int kLanes, bool kScalesOnly>
struct NormKernel {
  static constexpr int kThreads = kThreadsPerBlock;
  struct Args {
    Groups<const float> x;
    Groups<float> out;
    BFloat16* rounded;
    const float *weight, *bias;
    float* scales;
    int64_t groups;
    float offset, eps;
    bool centred;
  };
  static constexpr int kShared = 2 * SharedBytes<float>(Team<kLanes>::kScratch);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> scratch = arena.Take<float>(Team<kLanes>::kScratch),
                        more_scratch = arena.Take<float>(Team<kLanes>::kScratch);
    const int64_t group = Team<kLanes>::Group();
    if (group >= args.groups) return;
    const float* const x = args.x.At(group);
    const float mean = MeanOf<kLanes>(args.centred, x, args.x.n, more_scratch);
    float squares = 0;
    for (int i = Team<kLanes>::Member(); i < args.x.n; i += kLanes) squares += (x[i] - mean) * (x[i] - mean);
    const float scale = ScaleOf(Team<kLanes>::Sum(squares, scratch), args.x.n, args.eps);
    if constexpr (kScalesOnly) {
      if (Team<kLanes>::Member() != 0) return;
      args.scales[group] = scale;
      if (args.centred) args.scales[args.groups + group] = mean;
    } else {
      float* const out = args.out.At(group);
      for (int i = Team<kLanes>::Member(); i < args.x.n; i += kLanes) {
        out[i] = (x[i] - mean) * scale * (args.offset + args.weight[i]);
        if (args.bias != nullptr) out[i] += args.bias[i];
        if (args.rounded != nullptr) args.rounded[group * args.x.n + i] = Narrow<BFloat16>(out[i]);
      }
    }
  }
};

template <int kLanes>
struct NormGradientKernel {
  static constexpr int kThreads = kThreadsPerBlock;
  struct Args {
    Groups<const float> x, dy;
    Groups<float> dx;
    BFloat16* rounded;
    const float* weight;
    int64_t groups;
    float offset, eps;
    bool accumulate, centred;
  };
  static constexpr int kShared = 4 * SharedBytes<float>(Team<kLanes>::kScratch);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> scratch = arena.Take<float>(Team<kLanes>::kScratch),
                        more_scratch = arena.Take<float>(Team<kLanes>::kScratch),
                        sum_scratch = arena.Take<float>(Team<kLanes>::kScratch),
                        mean_scratch = arena.Take<float>(Team<kLanes>::kScratch);
    const int64_t group = Team<kLanes>::Group();
    if (group >= args.groups) return;
    const float *const x = args.x.At(group), *const dy = args.dy.At(group);
    const int n = args.x.n;
    const float mean = MeanOf<kLanes>(args.centred, x, n, mean_scratch);
    float squares = 0, products = 0, sum = 0;
    for (int i = Team<kLanes>::Member(); i < n; i += kLanes) {
      const float centred = x[i] - mean, inner = dy[i] * (args.offset + args.weight[i]);
      squares += centred * centred;
      products += centred * inner;
      sum += inner;
    }
    // The gradient of a centred x has no mean.
    const float all = args.centred ? Team<kLanes>::Sum(sum, sum_scratch) / static_cast<float>(n) : 0;
    const float scale = ScaleOf(Team<kLanes>::Sum(squares, scratch), n, args.eps);
    const float along = Team<kLanes>::Sum(products, more_scratch) * scale * scale * scale / static_cast<float>(n);
    float* const dx = args.dx.At(group);
    for (int i = Team<kLanes>::Member(); i < n; i += kLanes) {
      const float gradient = (dy[i] * (args.offset + args.weight[i]) - all) * scale - (x[i] - mean) * along;
      dx[i] = args.accumulate ? dx[i] + gradient : gradient;
      if (args.rounded != nullptr) args.rounded[group * n + i] = Narrow<BFloat16>(dx[i]);
    }
  }
};

// dweight[j] += the sum over the groups of dy[j] * (x[j] - mean) * scale. Each lane of a warp adds up one column; the
// warps divide the groups, and their sums are added in order.
struct WeightGradientKernel {
  static constexpr int kThreads = kThreadsPerBlock, kWarps = kThreads / kWarpSize;
  struct Args {
    Groups<const float> x, dy;
    const float *scales, *means;  // means: null if they are 0
    float* dweight;
    int64_t groups;
  };
  static constexpr int kShared = SharedBytes<float>(kThreads);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> sums = arena.Take<float>(kThreads);
    const int col = Block().x * kWarpSize + Lane();
    float sum = 0;
    if (col < args.x.n)
      for (int64_t group = Warp(); group < args.groups; group += kWarps)
        sum += args.dy.At(group)[col] * (args.x.At(group)[col] - (args.means != nullptr ? args.means[group] : 0)) *
               args.scales[group];
    sums[Thread()] = sum;
    SyncThreads();
    if (Warp() != 0 || col >= args.x.n) return;
    for (int w = 1; w < kWarps; ++w) sum += sums[w * kWarpSize + Lane()];
    args.dweight[col] += sum;
  }
};

constexpr int kLongestOfWarp = 512;

// Calls body(std::integral_constant<int, the threads per group>()).
template <typename Body>
void WithTeam(int64_t n, Body&& body) {
  if (n <= kLongestOfWarp) return body(std::integral_constant<int, kWarpSize>());
  body(std::integral_constant<int, kThreadsPerBlock>());
}

int64_t CountGroups(const GroupNorm& norm, const MatrixView<const float>& x) {
  Require(norm.n > 0 && x.cols % norm.n == 0, "a norm", "columns in groups of equal size, not", x.cols);
  return x.rows * (x.cols / norm.n);
}

}  // namespace

void NormGroups(Stream stream, const GroupNorm& norm, MatrixView<const float> x, const WrittenRows& out) {
  const int64_t groups = CountGroups(norm, x);
  if (groups == 0) return;
  WithTeam(norm.n, [&](auto lanes) {
    using Kernel = NormKernel<lanes(), false>;
    Launch<Kernel>(stream, {.x = Blocks(groups, Team<lanes()>::kPerBlock), .shared_bytes = Kernel::kShared},
                   {GroupsOf(x, norm.n), GroupsOf(out.rows, norm.n), out.rounded, norm.weight, norm.bias, nullptr,
                    groups, norm.offset, norm.eps, norm.centred});
  });
}

void NormGroupsGradient(Stream stream, const GroupNorm& norm, MatrixView<const float> x, MatrixView<const float> dy,
                        bool accumulate, const WrittenRows& dx, MatrixView<float> dweight, float* scales) {
  const int64_t groups = CountGroups(norm, x);
  if (groups == 0) return;
  const Groups<const float> xs = GroupsOf(x, norm.n), dys = GroupsOf(dy, norm.n);
  WithTeam(norm.n, [&](auto lanes) {
    const int blocks = Blocks(groups, Team<lanes()>::kPerBlock);
    if (dweight.data != nullptr) {  // before dx, which may be dy
      using Scales = NormKernel<lanes(), true>;
      Launch<Scales>(stream, {.x = blocks, .shared_bytes = Scales::kShared},
                     {xs, {}, nullptr, nullptr, nullptr, scales, groups, 0, norm.eps, norm.centred});
      Launch<WeightGradientKernel>(stream,
                                   {.x = Blocks(norm.n, kWarpSize), .shared_bytes = WeightGradientKernel::kShared},
                                   {xs, dys, scales, norm.centred ? scales + groups : nullptr, dweight.data, groups});
    }
    using Kernel = NormGradientKernel<lanes()>;
    Launch<Kernel>(stream, {.x = blocks, .shared_bytes = Kernel::kShared},
                   {xs, dys, GroupsOf(dx.rows, norm.n), dx.rounded, norm.weight, groups, norm.offset, norm.eps,
                    accumulate, norm.centred});
  });
}

}  // namespace shiftrt::gpu
