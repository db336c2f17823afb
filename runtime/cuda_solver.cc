// runtime/linalg.h's Solver on a GPU: matrices go over, and results come back.
#include <optional>

#include "runtime/check.h"
#include "runtime/cuda_dense.h"
#include "runtime/linalg.h"

namespace shiftrt::gpu {

namespace {

constexpr const char* kSystem = "a system to solve";

class CudaSolver : public linalg::Solver {
 public:
  void Gemm(const linalg::Operand& a, const linalg::Operand& b, const linalg::Scales& scales,
            MatrixView<double> c) override {
    const Buffer a_there = Upload(a.view), b_there = Upload(b.view);
    const Buffer c_there = scales.beta == 0 ? Buffer(stream_.get(), c.rows * c.cols, kSystem) : Upload(c);
    dense().Gemm(scales.alpha, {a_there.data(), a.view.rows, a.view.cols, a.transposed},
                 {b_there.data(), b.view.rows, b.view.cols, b.transposed}, scales.beta, c_there.data());
    Download(c_there, c);
  }

  bool CholeskySolve(MatrixView<double> a, MatrixView<double> b) override {
    const Buffer factor = Upload(a);
    if (!dense().Cholesky(factor.data(), a.rows)) return false;
    const Buffer x = Upload(b);
    for (const bool transposed : {true, false})
      dense().SolveTriangular(factor.data(), a.rows, transposed, x.data(), b.cols);
    Download(factor, a);
    Download(x, b);
    return true;
  }

  bool SymmetricEigen(MatrixView<double> a, std::span<double> values) override {
    const Buffer there = Upload(a), values_there(stream_.get(), a.rows, kSystem);
    if (!dense().Eigen(there.data(), a.rows, values_there.data())) return false;
    Download(there, a);
    Download(values_there, {values.data(), 1, a.rows});
    return true;
  }

 private:
  using Buffer = DeviceBuffer<double>;

  Dense& dense() {
    if (!dense_) dense_.emplace(stream_.get());
    return *dense_;
  }

  // Rows that lie without gaps go in one copy.
  template <typename Copy>
  static void ForEachPiece(int64_t rows, int64_t cols, int64_t stride, const Copy& copy) {
    const int64_t together = stride == cols ? rows : 1;
    for (int64_t i = 0; i < rows; i += together) copy(i, together * cols * static_cast<int64_t>(sizeof(double)));
  }
  Buffer Upload(MatrixView<const double> m) {
    Buffer to(stream_.get(), m.rows * m.cols, kSystem);
    ForEachPiece(m.rows, m.cols, m.stride, [&](int64_t i, int64_t bytes) {
      CopyToDevice(stream_.get(), to.data() + i * m.cols, m.row(i), bytes);
    });
    return to;
  }
  void Download(const Buffer& from, MatrixView<double> m) {
    ForEachPiece(m.rows, m.cols, m.stride, [&](int64_t i, int64_t bytes) {
      CopyToHost(stream_.get(), m.row(i), from.data() + i * m.cols, bytes);
    });
  }

  StreamOwner stream_;
  std::optional<Dense> dense_;  // made when there is something to solve
};

}  // namespace

std::shared_ptr<linalg::Solver> MakeSolver() {
  Check(WhyUnavailable().empty(), "CUDA: {}", WhyUnavailable());
  return std::make_shared<CudaSolver>();
}

}  // namespace shiftrt::gpu
