// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rmsnorm.h"
#include "kernels/cuda/rows.cuh"
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

// Reads up to eight elements of the stream and adds the pending update. If there is one, writes the sums back. `at` is
// where the update has these elements, and `col` their column.
template <bool kWide>
SHIFTRT_DEVICE void ReadAdded(const Pending& pending, int64_t at, int col, int count, float* h, float (&values)[8]) {
  Read<kWide>(h, count, values);
  if (pending.update == nullptr && pending.bias == nullptr) return;
  float more[8];
  if (pending.update != nullptr) {
    Read<kWide>(pending.update + at, count, more);
    for (int j = 0; j < 8; ++j) values[j] += more[j];
  }
  if (pending.bias != nullptr) {
    Read<kWide>(pending.bias + col, count, more);
    for (int j = 0; j < 8; ++j) values[j] += more[j];
  }
  Write<kWide>(h, count, values);
}

// A member of a team processes pieces of eight elements of a group.
template <int kLanes, bool kWide, typename T>
struct NormKernel {
  static constexpr int kThreads = kThreadsPerBlock;
  struct Args {
    Groups<float> x;
    Pending pending;
    const float *weight, *bias;
    Groups<T> out;
    BFloat16* rounded;
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
    const int n = args.x.n, first = 8 * Team<kLanes>::Member(), step = 8 * kLanes;
    float* const x = args.x.At(group);
    float sum = 0, squares = 0, mean = 0, values[8];
    for (int i = first; i < n; i += step) {
      ReadAdded<kWide>(args.pending, group * n + i, i, n - i, x + i, values);
      for (int j = 0; j < 8; ++j) {
        sum += values[j];  // after the end of the group they are 0
        squares += values[j] * values[j];
      }
    }
    if (args.centred) {
      mean = Team<kLanes>::Sum(sum, more_scratch) / static_cast<float>(n);
      squares = 0;
      for (int i = first; i < n; i += step) {
        Read<kWide>(x + i, n - i, values);  // written above by the same thread
        for (int j = 0; j < 8; ++j)
          if (i + j < n) squares += (values[j] - mean) * (values[j] - mean);
      }
    }
    const float scale = ScaleOf(Team<kLanes>::Sum(squares, scratch), n, args.eps);
    T* const out = args.out.At(group);
    for (int i = first; i < n; i += step) {
      float weight[8], bias[8] = {};
      Read<kWide>(x + i, n - i, values);
      if (args.weight != nullptr) {
        Read<kWide>(args.weight + i, n - i, weight);
        if (args.bias != nullptr) Read<kWide>(args.bias + i, n - i, bias);
        for (int j = 0; j < 8; ++j) values[j] = (values[j] - mean) * scale * (args.offset + weight[j]) + bias[j];
      }
      Write<kWide>(out + i, n - i, values);
      if (args.rounded != nullptr) Write<kWide>(args.rounded + group * n + i, n - i, values);
    }
  }
};

// There is one block per row.
struct AddNormedUpdateKernel {
  static constexpr int kThreads = kThreadsPerBlock;
  struct Args {
    float *h, *update;
    const float *bias, *weight;
    int hidden;
    float eps, scale;
  };
  static constexpr int kShared = SharedBytes<float>(kThreads / kWarpSize);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> scratch = arena.Take<float>(kThreads / kWarpSize);
    const int64_t row = static_cast<int64_t>(Block().x) * args.hidden;
    float squares = 0, values[8], h[8];
    for (int i = 8 * Thread(); i < args.hidden; i += 8 * kThreads) {
      ReadAdded<true>({nullptr, args.bias}, row + i, i, 8, args.update + row + i, values);
      for (int j = 0; j < 8; ++j) squares += values[j] * values[j];
    }
    const float mean = BlockSum<kThreads>(squares, scratch) / static_cast<float>(args.hidden);
    const float scale = (args.weight != nullptr ? ReciprocalSqrt(mean + args.eps) : 1) * args.scale;
    for (int i = 8 * Thread(); i < args.hidden; i += 8 * kThreads) {
      float weight[8] = {1, 1, 1, 1, 1, 1, 1, 1};
      Load8(args.update + row + i, values);  // written above by the same thread
      if (args.weight != nullptr) Load8(args.weight + i, weight);
      Load8(args.h + row + i, h);
      for (int j = 0; j < 8; ++j) {
        values[j] = values[j] * scale * weight[j];
        h[j] += values[j];
      }
      Store8(args.update + row + i, values);
      Store8(args.h + row + i, h);
    }
  }
};

// `scales` (groups) = 1 / sqrt(mean(x^2) + eps), and after them the means of groups that are centred.
template <int kLanes>
struct ScalesKernel {
  static constexpr int kThreads = kThreadsPerBlock;
  struct Args {
    Groups<const float> x;
    float* scales;
    int64_t groups;
    float eps;
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
    if (Team<kLanes>::Member() != 0) return;
    args.scales[group] = scale;
    if (args.centred) args.scales[args.groups + group] = mean;
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
    sum = LaneSum<kThreads>(sum, sums);
    if (Warp() == 0 && col < args.x.n) args.dweight[col] += sum;
  }
};

constexpr int kLongestOfWarp = 512;

// Calls body(std::integral_constant<int, the threads per group>()).
template <typename Body>
void WithTeam(int64_t n, Body&& body) {
  if (n <= kLongestOfWarp) return body(std::integral_constant<int, kWarpSize>());
  body(std::integral_constant<int, kThreadsPerBlock>());
}

// The elements that one norm has of a row.
int64_t LengthOf(const Norm& norm, int64_t cols) {
  const int64_t n = norm.n > 0 ? norm.n : cols;
  Require(n == 0 || cols % n == 0, "a norm", "columns in groups of equal size, not", cols);
  return n;
}

void RequireStream(const char* operation, const MatrixView<float>& h) {
  Require(h.cols % 8 == 0, operation, "a hidden size that is a multiple of 8", h.cols);
  Require(h.stride == h.cols, operation, "dense rows, a stride of the hidden size", h.stride);
}

// x changes only if an update is pending.
template <typename T>
void LaunchNorm(Stream stream, const Norm& norm, MatrixView<float> x, const Pending& pending, MatrixView<T> out,
                BFloat16* rounded) {
  const int64_t n = LengthOf(norm, x.cols), groups = n == 0 ? 0 : x.rows * (x.cols / n);
  if (groups == 0) return;
  const MatrixView<const float> weight(norm.weight, 1, n, 0), bias(norm.bias, 1, n, 0);
  const bool wide = n % 8 == 0 && IsWide(x) && IsWide(out) && IsWide(weight) && IsWide(bias);
  WithTeam(n, [&](auto lanes) {
    const auto launch = [&](auto kernel) {
      using Kernel = decltype(kernel);
      Launch<Kernel>(stream, {.x = Blocks(groups, Team<lanes()>::kPerBlock), .shared_bytes = Kernel::kShared},
                     {GroupsOf(x, n), pending, norm.weight, norm.bias, GroupsOf(out, n), rounded, groups, norm.offset,
                      norm.eps, norm.centred});
    };
    if (wide) {
      launch(NormKernel<lanes(), true, T>());
    } else {
      launch(NormKernel<lanes(), false, T>());
    }
  });
}

}  // namespace

void AddNorm(Stream stream, MatrixView<float> h, const Pending& pending, const Norm& norm, DeviceArray out) {
  RequireStream("a norm", h);
  WithType("a norm", out.dtype, [&](auto type) {
    using T = decltype(type);
    LaunchNorm(stream, norm, h, pending, MatrixView<T>(static_cast<T*>(out.data), h.rows, h.cols), nullptr);
  });
}

void NormRows(Stream stream, const Norm& norm, MatrixView<const float> x, const WrittenRows& out) {
  const MatrixView<float> unchanged(const_cast<float*>(x.data), x.rows, x.cols, x.stride);
  LaunchNorm(stream, norm, unchanged, {}, out.rows, out.rounded);
}

void AddNormedUpdate(Stream stream, MatrixView<float> h, float* update, const float* bias, const float* weight,
                     float eps, float scale) {
  RequireStream("RMSNorm of an update", h);
  if (h.rows == 0) return;
  using Kernel = AddNormedUpdateKernel;
  Launch<Kernel>(stream, {.x = static_cast<int>(h.rows), .shared_bytes = Kernel::kShared},
                 {h.data, update, bias, weight, static_cast<int>(h.cols), eps, scale});
}

void NormRowsGradient(Stream stream, const Norm& norm, MatrixView<const float> x, MatrixView<const float> dy,
                      bool accumulate, const WrittenRows& dx, MatrixView<float> dweight, float* scales) {
  const int64_t n = LengthOf(norm, x.cols), groups = n == 0 ? 0 : x.rows * (x.cols / n);
  if (groups == 0) return;
  const Groups<const float> xs = GroupsOf(x, n), dys = GroupsOf(dy, n);
  WithTeam(n, [&](auto lanes) {
    const int blocks = Blocks(groups, Team<lanes()>::kPerBlock);
    if (dweight.data != nullptr) {  // before dx, which may be dy
      using Scales = ScalesKernel<lanes()>;
      Launch<Scales>(stream, {.x = blocks, .shared_bytes = Scales::kShared},
                     {xs, scales, groups, norm.eps, norm.centred});
      Launch<WeightGradientKernel>(stream, {.x = Blocks(n, kWarpSize), .shared_bytes = WeightGradientKernel::kShared},
                                   {xs, dys, scales, norm.centred ? scales + groups : nullptr, dweight.data, groups});
    }
    using Kernel = NormGradientKernel<lanes()>;
    Launch<Kernel>(stream, {.x = blocks, .shared_bytes = Kernel::kShared},
                   {xs, dys, GroupsOf(dx.rows, n), dx.rounded, norm.weight, groups, norm.offset, norm.eps, accumulate,
                    norm.centred});
  });
}

}  // namespace shiftrt::gpu
