// SPDX-License-Identifier: Apache-2.0
// runtime/linalg/solver.h on a GPU: cuBLAS, cuSOLVER and kernels of our own on matrices in device memory.
#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/cuda/tridiagonal.h"
#include "runtime/check.h"
#include "runtime/cuda/dense.h"
#include "runtime/linalg/linalg.h"

namespace shiftrt::gpu {

namespace {

constexpr const char* kSystem = "sums or a system to solve";

using Buffer = DeviceBuffer<double>;

class Held : public linalg::Array {
 public:
  Held(Stream stream, int64_t rows, int64_t cols) : Array(rows, cols), buffer(stream, rows * cols, kSystem) {}
  static Held& Of(linalg::Array& array) { return static_cast<Held&>(array); }
  static double* Data(const linalg::Array& array) { return static_cast<const Held&>(array).buffer.data(); }
  static int64_t SizeInBytes(const linalg::Array& array) {
    return array.rows() * array.cols() * static_cast<int64_t>(sizeof(double));
  }

  Buffer buffer;
};

class CudaSolver : public linalg::Solver {
 public:
  explicit CudaSolver(int device) : stream_(device) {}
  bool AvoidsEigen(int64_t /*n*/, int64_t /*sides*/) const override { return true; }
  linalg::ArrayPtr Make(int64_t rows, int64_t cols) override {
    return std::make_unique<Held>(stream_.get(), rows, cols);
  }
  void Upload(MatrixView<const double> from, linalg::Array& to) override {
    ForEachPiece(from, [&](int64_t i, int64_t bytes) {
      CopyToDevice(stream_.get(), Held::Data(to) + i * from.cols, from.row(i), bytes);
    });
  }
  void Download(const linalg::Array& from, MatrixView<double> to) override {
    ForEachPiece(to, [&](int64_t i, int64_t bytes) {
      CopyToHost(stream_.get(), to.row(i), Held::Data(from) + i * to.cols, bytes);
    });
  }

  void Copy(const linalg::Array& from, linalg::Array& to) override {
    CopyRowsOnDevice(stream_.get(), Held::Data(to), Bytes(to.cols()), {Held::Data(from), Bytes(from.cols())},
                     Bytes(to.cols()), to.rows());
  }
  std::vector<double> Elements(const linalg::Array& a, int64_t first, int64_t step, int64_t count) override {
    const Buffer together = NewVector(count);
    CopyRowsOnDevice(stream_.get(), together.data(), Bytes(1), {Held::Data(a) + first, Bytes(step)}, Bytes(1), count);
    return ToVector(together);
  }
  bool MayStay(const std::shared_ptr<const linalg::Array>& array) override {
    constexpr int64_t kShare = 4;
    int64_t taken = Held::SizeInBytes(*array);
    std::erase_if(staying_, [](const auto& other) { return other.expired(); });
    for (const std::weak_ptr<const linalg::Array>& other : staying_) {
      const std::shared_ptr<const linalg::Array> there = other.lock();
      if (there == array) return true;
      taken += Held::SizeInBytes(*there);
    }
    if (kShare * taken > taken + QueryDevice(stream_.get().device).free_bytes) return false;
    staying_.push_back(array);
    return true;
  }

  void Gemm(const linalg::Operand& a, const linalg::Operand& b, const linalg::Scales& scales,
            linalg::Array& c) override {
    dense().Gemm(scales.alpha, There(a), There(b), scales.beta, Held::Data(c));
  }
  void Symm(linalg::Side side, const linalg::Array& a, const linalg::Array& b, linalg::Array& c) override {
    dense().Symm(side, Held::Data(a), Held::Data(b), b.rows(), b.cols(), Held::Data(c));
  }
  bool CholeskySolve(linalg::Array& a, linalg::Array& b, double* rcond) override {
    const double norm = rcond != nullptr ? linalg::SymmetricNorm1(Downloaded(a).view()) : 0;
    if (!dense().Cholesky(Held::Data(a), a.rows())) return false;
    if (rcond != nullptr) *rcond = linalg::ReciprocalCondition({}, Downloaded(a).view(), norm);
    for (const bool transposed : {true, false})
      dense().SolveTriangular(Held::Data(a), a.rows(), transposed, Held::Data(b), b.cols());
    return true;
  }

  std::vector<double> Eigen(linalg::Array& a) override {
    const Buffer values = NewVector(a.rows());
    Check(dense().Eigen(Held::Data(a), a.rows(), values.data()),
          "the eigendecomposition of a {} x {} matrix did not converge", a.rows(), a.rows());
    return ToVector(values);
  }
  linalg::Tridiagonal Tridiagonalize(linalg::Array& a) override {
    const Buffer diagonal = NewVector(a.rows()), off_diagonal = NewVector(a.rows()), reflectors = NewVector(a.rows());
    for (const Buffer* buffer : {&off_diagonal, &reflectors})  // their last element is not written otherwise
      FillBytes(stream_.get(), buffer->data(), 0, Bytes(buffer->size()));
    dense().Tridiagonalize(Held::Data(a), a.rows(), diagonal.data(), off_diagonal.data(), reflectors.data());
    return {ToVector(diagonal), ToVector(off_diagonal), ToVector(reflectors)};
  }
  void Rotate(const linalg::Array& a, const linalg::Tridiagonal& t, linalg::Array& rows) override {
    const Buffer reflectors = There(t.reflectors);
    dense().Rotate(Held::Data(a), a.rows(), reflectors.data(), Held::Data(rows), rows.rows());
  }

  void RotateColumns(const linalg::Array& a, const linalg::Tridiagonal& t, linalg::Array& b) override {
    const Buffer reflectors = There(t.reflectors);
    dense().RotateColumns(Held::Data(a), b.rows(), reflectors.data(), Held::Data(b), b.cols());
  }
  // As many lambdas at a time as the scratch has room for.
  std::vector<double> ShrunkSquares(const linalg::Bidiagonal& root, std::span<const linalg::Bidiagonal> shrinkages,
                                    const linalg::Array& b) override {
    constexpr int64_t kTogether = 4;
    const int64_t n = b.rows(), columns = b.cols(), count = std::ssize(shrinkages),
                  blocks = Blocks(columns, kColumnsPerBlock);
    const int64_t together = std::min(kTogether, count);
    const Buffer root_off_diagonal = There(root.off_diagonal), root_inverse = There(root.inverse),
                 scratch = NewVector(together * n * columns), sums = NewVector(count * blocks);
    std::vector<double> all_off_diagonals, all_inverse;
    for (const linalg::Bidiagonal& s : shrinkages) {
      all_off_diagonals.insert(all_off_diagonals.end(), s.off_diagonal.begin(), s.off_diagonal.end());
      all_inverse.insert(all_inverse.end(), s.inverse.begin(), s.inverse.end());
    }
    const Buffer off_diagonal = There(all_off_diagonals), inverse = There(all_inverse);
    for (int64_t first = 0; first < count; first += together)
      ComputeShrunkSquares(stream_.get(), {.root = {root_off_diagonal.data(), root_inverse.data()},
                                           .shrinkages = {off_diagonal.data() + first * n, inverse.data() + first * n},
                                           .count = std::min(together, count - first),
                                           .b = Held::Data(b),
                                           .n = n,
                                           .columns = columns,
                                           .scratch = scratch.data(),
                                           .sums = sums.data() + first * blocks});
    const std::vector<double> parts = ToVector(sums);
    std::vector<double> squares(count, 0.0);
    for (int64_t s = 0; s < count; ++s)
      for (int64_t i = 0; i < blocks; ++i) squares[s] += parts[s * blocks + i];
    return squares;
  }

  void AddToDiagonal(double value, linalg::Array& a) override {
    gpu::AddToDiagonal(stream_.get(), value, a.rows(), Held::Data(a));
  }
  void ScaleRows(std::span<const double> factors, linalg::Array& a) override {
    Buffer scaled = NewVector(a.rows() * a.cols());
    dense().ScaleRows(There(factors).data(), Held::Data(a), a.rows(), a.cols(), scaled.data());
    Held::Of(a).buffer = std::move(scaled);
  }
  std::vector<double> RowDots(const linalg::Array& a, const linalg::Array& b) override {
    const Buffer dots = NewVector(a.rows());
    dense().RowDots(Held::Data(a), Held::Data(b), a.rows(), a.cols(), dots.data());
    return ToVector(dots);
  }

 private:
  Dense& dense() {
    UseDeviceOf(stream_.get());
    if (!dense_) dense_.emplace(stream_.get());
    return *dense_;
  }

  static int64_t Bytes(int64_t elements) { return elements * static_cast<int64_t>(sizeof(double)); }
  static DenseOperand There(const linalg::Operand& a) {
    return {Held::Data(a.array), a.array.rows(), a.array.cols(), a.transposed};
  }
  Buffer NewVector(int64_t size) { return {stream_.get(), size, kSystem}; }
  Buffer There(std::span<const double> values) { return {stream_.get(), values, kSystem}; }
  std::vector<double> ToVector(const Buffer& from) {
    std::vector<double> to(from.size());
    CopyToHost(stream_.get(), to.data(), from.data(), Bytes(from.size()));
    return to;
  }
  // Contiguous rows are transferred in one copy.
  template <typename T, typename Copy>
  static void ForEachPiece(MatrixView<T> m, const Copy& copy) {
    const int64_t together = m.stride == m.cols ? m.rows : 1;
    for (int64_t i = 0; i < m.rows; i += together) copy(i, Bytes(together * m.cols));
  }

  StreamOwner stream_;
  std::optional<Dense> dense_;  // created on first use
  std::vector<std::weak_ptr<const linalg::Array>> staying_;
};

}  // namespace

DeviceMatrix There(const linalg::Array& array) {
  const Buffer& buffer = static_cast<const Held&>(array).buffer;
  return {buffer.stream(), buffer.data()};
}

std::shared_ptr<linalg::Solver> MakeSolver(int device) {
  Check(WhyUnavailable().empty(), "CUDA: {}", WhyUnavailable());
  return std::make_shared<CudaSolver>(device);
}

}  // namespace shiftrt::gpu
