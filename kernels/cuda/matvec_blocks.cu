// SPDX-License-Identifier: Apache-2.0
// The matrix-vector product with quantised weights. One kernel reads all formats, because the rows of joined matrices
// may differ in theirs: a warp chooses by its rows.
//
// Instructions are scarcer than bytes with four bits per weight. At 4.2 TB/s an H200 receives 7.5e12 weights of Q4_K
// per second, for each of which its 132 x 128 lanes at 1.755 GHz can issue four instructions. The inner loops for two
// rows have, as compiled for 9.0, 6.9 instructions per weight of Q4_K, 4.7 of Q4_0, 6.7 of Q6_K and 5.5 of Q8_0. That
// is why no weight is scaled or made exact on its own.
#include "kernels/cuda/blocks.cuh"
#include "kernels/cuda/matvec.cuh"

namespace shiftrt::gpu {

namespace {

constexpr int kBlockMatVecBlocks = 2;  // per multiprocessor

// The vector in shared memory. Adjacent lanes read runs of eight elements that are one, two or four runs apart, as the
// format says. Where a run is stored is exchanged within eight runs, so that the eight lanes that are served together
// find theirs in different banks with every format.
struct PiecesVector {
  Shared<float> low, high;
  static SHIFTRT_DEVICE int Place(int at) {
    const int run = at / 8, eighth = run / 8 % 4;
    return 4 * (run ^ eighth ^ (eighth / 2 * 4));
  }
  SHIFTRT_DEVICE void Get(int at, float (&out)[8]) const {
    float a[4], b[4];
    const int place = Place(at);
    LoadShared4(low + place, a);
    LoadShared4(high + place, b);
    for (int j = 0; j < 4; ++j) {
      out[j] = a[j];
      out[j + 4] = b[j];
    }
  }
  SHIFTRT_DEVICE void Set(int at, const float (&in)[8]) const {
    const int place = Place(at);
    StoreShared4(low + place, in[0], in[1], in[2], in[3]);
    StoreShared4(high + place, in[4], in[5], in[6], in[7]);
  }
};

// One lane's part of the dot products of rows of one format.
template <typename Format, int kRows, typename Vector>
SHIFTRT_DEVICE void BlockDots(const BlockRow (&rows)[kRows], const Vector& vector, int cols, float (&sums)[kRows]) {
  constexpr int kUnroll = Format::kUnderWay / kRows;
  const int pieces = cols / kPieceColumns;
  for (int first = 0; first < pieces; first += kUnroll * kWarpSize) {
    typename Format::Raw raw[kUnroll][kRows];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int piece = first + u * kWarpSize + Lane();
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (piece < pieces) raw[u][r] = Format::Load(rows[r], piece);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      // Otherwise the compiler delays loads of weights, and reads the vector for several pieces at once and spills.
      SyncWarp();
      const int piece = first + u * kWarpSize + Lane();
      if (piece >= pieces) continue;
#pragma unroll
      for (int run = 0; run < 4; ++run) {
        float x[8], all = 0;
        vector.Get(Format::Column(piece, run), x);
        if constexpr (Format::kBias != 0 || Format::kOffset)
          for (int j = 0; j < 8; ++j) all += x[j];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float codes[8], sum = -Format::kBias * all;
          Format::Codes(raw[u][r], run, codes);
          for (int j = 0; j < 8; ++j) sum += codes[j] * x[j];
          sums[r] += Format::Scale(raw[u][r], piece, run) * sum;
          if constexpr (Format::kOffset) sums[r] += Format::Offset(raw[u][r], piece, run) * all;
        }
      }
    }
  }
}

struct Quantised {};  // in the place of a type of weights

}  // namespace

template <>
struct MatVecWeights<Quantised> {
  using Cache = BFloat16;
  using SharedVector = PiecesVector;
  StoredPart parts[3];

  static constexpr int LeastBlocks(bool) { return kBlockMatVecBlocks; }
  // Places are exchanged within 64 columns.
  static constexpr int SharedElements(int cols) { return (cols + 63) / 64 * 32; }
  // Rows of different formats, a gate and an up projection or neighbours, are each taken kRows times.
  template <int kRows, typename Vector>
  SHIFTRT_DEVICE void Dots(const int (&rows)[kRows], const Vector& vector, int cols, float (&sums)[kRows]) const {
    int part[kRows], within[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      part[r] = rows[r] < parts[0].end ? 0 : rows[r] < parts[1].end ? 1 : 2;
      within[r] = rows[r] - (part[r] > 0 ? parts[part[r] - 1].end : 0);
    }
    constexpr int kLast = kRows - 1;
    const bool alike = parts[part[0]].type == parts[part[kLast]].type;
    for (int taken = 0; taken < (alike ? 1 : kRows); ++taken) {
      // An index that is not known to the compiler would put the arrays into memory.
      const int first = alike || taken == 0 ? part[0] : part[kLast], last = alike || taken > 0 ? part[kLast] : part[0];
      const int first_row = alike || taken == 0 ? within[0] : within[kLast],
                last_row = alike || taken > 0 ? within[kLast] : within[0];
      float found[kRows] = {};
      WithStored(parts[first].type, [&](auto type) {
        BlockRow at[kRows];
        at[0] = parts[first].template Row<type()>(first_row, cols);
        if constexpr (kRows > 1) at[kLast] = parts[last].template Row<type()>(last_row, cols);
        BlockDots<BlockFormat<type()>>(at, vector, cols, found);
      });
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (alike || r == taken) sums[r] = found[r];
    }
  }
};

template <Finish kFinish>
void LaunchBlockMatVec(Stream stream, const MatVecProblem& problem, const float* addend, int multiprocessors,
                       const RotatedHeads& heads) {
  constexpr const char* kOperation = "matrix-vector product with quantised weights";
  Require(problem.cols % kPieceColumns == 0, kOperation, "a multiple of 32 columns", problem.cols);
  MatVecWeights<Quantised> w;
  int rows = 0;
  for (int i = 0; i < 3; ++i) {
    if (i < problem.w.count) {
      const WeightPart& part = problem.w.parts[i];
      Require(TakesBlocks(part.array.dtype) || part.array.dtype == DType::kBFloat16, kOperation,
              "Q4_0, Q8_0, Q4_K, Q6_K or bfloat16, not blocks of bytes",
              static_cast<int64_t>(SizeOf(part.array.dtype)));
      w.parts[i] = Stored(part, problem.cols);
      rows += static_cast<int>(part.rows);
    }
    w.parts[i].end = rows;
  }
  Require(rows == problem.rows, kOperation, "as many rows as its parts have", problem.rows);
  const MatVecTile tile = ChooseMatVecTile(problem.rows, IsPaired(kFinish), false, multiprocessors);
  const auto launch = [&](auto kernel) {
    using Kernel = decltype(kernel);
    Launch<Kernel>(stream, {.x = tile.blocks, .shared_bytes = Kernel::SharedFor(static_cast<int>(problem.cols))},
                   MatVecArgs<Kernel, kFinish>(w, problem, addend, heads));
  };
  const auto with_rows = [&](auto norm) {
    if constexpr (!IsPaired(kFinish))
      if (tile.rows_per_warp == 1) return launch(MatVecKernel<Quantised, norm(), kFinish, 1, true>());
    launch(MatVecKernel<Quantised, norm(), kFinish, 2, true>());
  };
  constexpr bool kAdds = kFinish == Finish::kAdd;
  Require(!kAdds || problem.norm_weight == nullptr, kOperation, "no norm before an addition", problem.cols);
  if constexpr (!kAdds)
    if (problem.norm_weight != nullptr) return with_rows(std::true_type());
  using Shared = MatVecKernel<Quantised, false, kFinish, 2, true>;
  if (Shared::SharedFor(static_cast<int>(problem.cols)) <= kMaxSharedBytes) return with_rows(std::false_type());
  if constexpr (kAdds || kFinish == Finish::kStore) {
    launch(MatVecKernel<Quantised, false, kFinish, 2, false>());
  } else {
    Refuse(kOperation, "a vector that fits into shared memory", problem.cols);
  }
}

template void LaunchBlockMatVec<Finish::kStore>(Stream, const MatVecProblem&, const float*, int, const RotatedHeads&);
template void LaunchBlockMatVec<Finish::kAdd>(Stream, const MatVecProblem&, const float*, int, const RotatedHeads&);
template void LaunchBlockMatVec<Finish::kSwiGlu>(Stream, const MatVecProblem&, const float*, int, const RotatedHeads&);
template void LaunchBlockMatVec<Finish::kGeGlu>(Stream, const MatVecProblem&, const float*, int, const RotatedHeads&);
template void LaunchBlockMatVec<Finish::kRotate>(Stream, const MatVecProblem&, const float*, int, const RotatedHeads&);

}  // namespace shiftrt::gpu
