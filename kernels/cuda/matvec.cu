// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/matvec.cuh"

namespace shiftrt::gpu {

namespace {

// Blocks per multiprocessor. A kernel takes so many registers that no more fit. With room for twice as many, products
// with a norm took a fifth longer on an H200 where launches overlap, presumably because a multiprocessor that finishes
// the launch in front early takes more than its share of the blocks.
constexpr int BlocksPerMultiprocessor(bool norm) { return norm ? 3 : 2; }
// Each lane has 128 bytes of weights in flight, so two blocks have 64 KiB. With the bandwidth of 4.8 TB/s and the
// latency of 800 ns of an H200, 29 KB per multiprocessor are needed.
constexpr int kBytesUnderWay = 128;

// The two halves of every eight elements are stored in separate arrays, which avoids bank conflicts of 16-byte reads.
struct SharedVector {
  static constexpr bool kFar = false;
  static constexpr int kRun = 8, kSpan = kRun;
  Shared<float> low, high;
  static constexpr int Bytes(int cols) { return 2 * SharedBytes<float>(cols / 2); }
  static SHIFTRT_DEVICE SharedVector Take(SharedArena& arena, int cols) {
    const Shared<float> low = arena.Take<float>(cols / 2);
    return {low, arena.Take<float>(cols / 2)};
  }
  SHIFTRT_DEVICE void Get(int at, float (&out)[8]) const {
    float a[4], b[4];
    LoadShared4(low + at / 2, a);
    LoadShared4(high + at / 2, b);
    for (int j = 0; j < 4; ++j) {
      out[j] = a[j];
      out[j + 4] = b[j];
    }
  }
  SHIFTRT_DEVICE void Set(int at, const float (&in)[8]) const {
    StoreShared4(low + at / 2, in[0], in[1], in[2], in[3]);
    StoreShared4(high + at / 2, in[4], in[5], in[6], in[7]);
  }
};

// A lane's weights of a piece of kRows rows, which it loads together: eight columns of every kStep.
template <typename T, int kRows>
struct Piece {
  static constexpr int kStep = 8 * kWarpSize, kUnroll = kBytesUnderWay / (kRows * 8 * static_cast<int>(sizeof(T)));
  static constexpr int kColumns = kUnroll * kStep;
  Raw8<T> raw[kUnroll][kRows];
  bool loaded = false;

  // The piece that begins at column `first`.
  SHIFTRT_DEVICE void Load(const T* const (&rows)[kRows], int first, int cols) {
    const int at = first + 8 * Lane();
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (at + u * kStep < cols) raw[u][r] = LoadOnce8(rows[r] + at + u * kStep);
    loaded = true;
  }
};

// One lane's part of the dot products of kRows rows with the vector. Each element of the vector is read once for all
// rows, and together with the weights if it is in global memory. The first piece may be loaded already.
template <int kRows, typename T, typename Vector>
SHIFTRT_DEVICE void LaneDots(const T* const (&rows)[kRows], const Vector& vector, int cols, Piece<T, kRows>& weights,
                             float (&sums)[kRows]) {
  constexpr int kStep = Piece<T, kRows>::kStep, kUnroll = Piece<T, kRows>::kUnroll;
  for (int r = 0; r < kRows; ++r) sums[r] = 0;
  for (int first = 0; first < cols; first += Piece<T, kRows>::kColumns) {
    const int at = first + 8 * Lane();
    if (!weights.loaded) weights.Load(rows, first, cols);
    weights.loaded = false;
    float x[Vector::kFar ? kUnroll : 1][8];
#pragma unroll
    for (int u = 0; Vector::kFar && u < kUnroll; ++u)
      if (at + u * kStep < cols) vector.Get(at + u * kStep, x[u]);
    SyncWarp();  // otherwise the compiler delays loads to save registers
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (at + u * kStep >= cols) continue;
      float(&piece)[8] = x[Vector::kFar ? u : 0];
      if constexpr (!Vector::kFar) vector.Get(at + u * kStep, piece);
      float w[8];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        Widen8(weights.raw[u][r], w);
        for (int j = 0; j < 8; ++j) sums[r] += w[j] * piece[j];
      }
    }
  }
}

}  // namespace

template <typename T>
struct MatVecWeights {
  using Cache = T;
  using SharedVector = gpu::SharedVector;
  static constexpr bool kAlwaysShared = false;
  const T* data;

  SHIFTRT_DEVICE void SkipRows(int rows, int cols) { data += static_cast<int64_t>(rows) * cols; }
  // Without a number, the compiler would delay loads of float32.
  static constexpr int LeastBlocks(bool norm) { return norm || sizeof(T) == 4 ? BlocksPerMultiprocessor(norm) : 0; }
  template <int kRows>
  using Ahead = Piece<T, kRows>;
  template <int kRows>
  SHIFTRT_DEVICE void LoadAhead(const int (&rows)[kRows], int cols, Piece<T, kRows>& ahead) const {
    const T* starts[kRows];
    Starts(rows, cols, starts);
    ahead.Load(starts, 0, cols);
  }
  template <int kRows, typename Vector>
  SHIFTRT_DEVICE void Dots(const int (&rows)[kRows], const Vector& vector, int cols, Piece<T, kRows>& ahead,
                           float (&sums)[kRows]) const {
    const T* starts[kRows];
    Starts(rows, cols, starts);
    LaneDots<kRows>(starts, vector, cols, ahead, sums);
  }

 private:
  template <int kRows>
  SHIFTRT_DEVICE void Starts(const int (&rows)[kRows], int cols, const T* (&starts)[kRows]) const {
    for (int r = 0; r < kRows; ++r) starts[r] = data + static_cast<int64_t>(rows[r]) * cols;
  }
};

namespace {

template <Finish kFinish>
void LaunchMatVec(Stream stream, const MatVecProblem& problem, const float* addend, int multiprocessors,
                  const RotatedHeads& heads = {}) {
  Require(problem.cols % 8 == 0, "matrix-vector product", "a multiple of 8 columns", problem.cols);
  if (problem.rows == 0) return;
  if (problem.w.quantised()) return LaunchBlockMatVec<kFinish>(stream, problem, addend, multiprocessors, heads);
  const MatVecTile tile =
      ChooseMatVecTile(problem.rows, IsPaired(kFinish), problem.norm_weight != nullptr, multiprocessors);
  WithType("matrix-vector product", problem.w.plain.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto kernel) {
      using Kernel = decltype(kernel);
      const auto args =
          MatVecArgs<Kernel, kFinish>({static_cast<const T*>(problem.w.plain.data)}, problem, addend, heads);
      Launch<Kernel>(stream, {.x = tile.blocks, .shared_bytes = Kernel::SharedFor(static_cast<int>(problem.cols))},
                     args);
    };
    const auto with_rows = [&](auto norm) {
      if constexpr (!IsPaired(kFinish))
        if (tile.rows_per_warp == 1) return launch(MatVecKernel<T, norm(), kFinish, 1>());
      launch(MatVecKernel<T, norm(), kFinish, 2>());
    };
    if (problem.norm_weight != nullptr) {
      with_rows(std::true_type());
    } else {
      with_rows(std::false_type());
    }
  });
}

template <Finish kFinish>
void MultiplyExperts(Stream stream, MatVecProblem problem, const ExpertSlots& slots, int multiprocessors) {
  constexpr const char* kOperation = "matrix-vector products of experts";
  Require(problem.cols % 8 == 0, kOperation, "a multiple of 8 columns", problem.cols);
  Require(problem.norm_weight == nullptr && problem.bias == nullptr, kOperation, "no norm and no bias", problem.rows);
  Require(slots.count <= kMostBlocksAlongZ, kOperation, "at most 65535 slots", slots.count);
  if (problem.rows == 0 || slots.count == 0) return;
  problem.w = problem.w.Rows(0, problem.rows, problem.cols);
  if (problem.w.quantised()) return LaunchBlocksOfExperts<kFinish>(stream, problem, slots, multiprocessors);
  WithType(kOperation, problem.w.plain.dtype, [&](auto type) {
    using T = decltype(type);
    LaunchOfExperts<T, kFinish>(stream, {static_cast<const T*>(problem.w.plain.data)}, problem, slots, multiprocessors);
  });
}

}  // namespace

MatVecTile ChooseMatVecTile(int64_t rows, bool paired, bool norm, int multiprocessors) {
  const int pairs = Blocks(rows, 2 * kMatVecWarps), resident = BlocksPerMultiprocessor(norm) * multiprocessors;
  const bool two = paired || pairs >= multiprocessors;
  const int useful = two ? pairs : Blocks(rows, kMatVecWarps);
  return {two ? 2 : 1, useful < resident ? useful : resident};
}

void MatVec(Stream stream, const MatVecProblem& problem, int multiprocessors) {
  LaunchMatVec<Finish::kStore>(stream, problem, nullptr, multiprocessors);
}

void MatVecAdd(Stream stream, const MatVecProblem& problem, const float* addend, int multiprocessors) {
  LaunchMatVec<Finish::kAdd>(stream, problem, addend, multiprocessors);
}

void MatVecGated(Stream stream, Activation activation, const MatVecProblem& problem, int multiprocessors) {
  Require(problem.rows % 2 == 0, "gate and up projection", "an even number of rows", problem.rows);
  const auto launch = activation == Activation::kSilu ? LaunchMatVec<Finish::kSwiGlu> : LaunchMatVec<Finish::kGeGlu>;
  launch(stream, problem, nullptr, multiprocessors, {});
}

void MatVecOfExperts(Stream stream, const MatVecProblem& problem, const ExpertSlots& slots, int multiprocessors) {
  MultiplyExperts<Finish::kStore>(stream, problem, slots, multiprocessors);
}

void MatVecGatedOfExperts(Stream stream, Activation activation, const MatVecProblem& problem, const ExpertSlots& slots,
                          int multiprocessors) {
  Require(problem.rows % 2 == 0, "gate and up projection", "an even number of rows", problem.rows);
  const auto multiply =
      activation == Activation::kSilu ? MultiplyExperts<Finish::kSwiGlu> : MultiplyExperts<Finish::kGeGlu>;
  multiply(stream, problem, slots, multiprocessors);
}

void MatVecRotate(Stream stream, const MatVecProblem& problem, const RotatedHeads& heads, int multiprocessors) {
  Require(heads.head_dim > 0 && heads.head_dim % 2 == 0, "rotated product", "an even head dimension", heads.head_dim);
  Require(problem.rows == static_cast<int64_t>(heads.heads + 2 * heads.kv_heads) * heads.head_dim, "rotated product",
          "as many rows as all heads have", problem.rows);
  Require(heads.keys.dtype == problem.w.dtype() && heads.values.dtype == problem.w.dtype(), "rotated product",
          "a cache in the type of the weights, not one of bytes", static_cast<int64_t>(SizeOf(heads.keys.dtype)));
  LaunchMatVec<Finish::kRotate>(stream, problem, nullptr, multiprocessors, heads);
}

}  // namespace shiftrt::gpu
