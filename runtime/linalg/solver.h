// SPDX-License-Identifier: Apache-2.0
// The interface through which large float64 problems are solved: on the host (BLAS and LAPACK), or on the GPU of a
// Context's solver. Code written against a Solver keeps its matrices in the solver's memory and downloads only results.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/context.h"
#include "runtime/linalg/tridiagonal.h"
#include "runtime/tensor.h"

namespace shiftrt::linalg {

// A matrix (rows, cols) in the memory of the Solver that made it. It must be destroyed before the solver.
class Array {
 public:
  Array(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  virtual ~Array() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  int64_t rows_, cols_;
};
using ArrayPtr = std::unique_ptr<Array>;

struct Operand {
  const Array& array;
  bool transposed = false;
};
struct Scales {
  double alpha = 1, beta = 0;
};
enum class Side { kLeft, kRight };
// The largest side of an eigendecomposition on the host: LAPACK's dsyevd counts its workspace of 1 + 6 n + 2 n^2
// numbers in 32 bits.
inline constexpr int64_t kMostEigen = 32'764;

// Shapes must match. Of symmetric arrays only the upper triangle is read. Throws OutOfMemory if the solver's memory is
// too small.
class Solver : public std::enable_shared_from_this<Solver> {
 public:
  virtual ~Solver() = default;
  // True if callers should prefer Tridiagonalize(), RotateColumns() and ShrunkSquares() to Eigen() for a matrix (n, n)
  // and so many right sides. They take fewer FLOP, which is faster on a GPU. On the host they took longer than LAPACK's
  // divide and conquer where there are as many right sides as rows (docs/dev/gpu.md).
  virtual bool AvoidsEigen(int64_t n, int64_t sides) const = 0;
  virtual ArrayPtr Make(int64_t rows, int64_t cols) = 0;  // not initialised
  virtual void Upload(MatrixView<const double> from, Array& to) = 0;
  virtual void Download(const Array& from, MatrixView<double> to) = 0;
  // Copies the leading rows and columns of `from` to `to`, as many as `to` has.
  virtual void Copy(const Array& from, Array& to) = 0;
  // `count` elements of the row-major a, from the flat index `first` on, `step` apart.
  virtual std::vector<double> Elements(const Array& a, int64_t first, int64_t step, int64_t count) = 0;
  // An array that is only read. The host's solver does not copy the values, which must outlive it.
  virtual ArrayPtr Reading(MatrixView<const double> from) { return Uploaded(from); }
  // True if an array may stay in memory after the work that made it (PlacedMatrix). False on the host, where matrices
  // hold the values. On a GPU, arrays may stay while they take at most a quarter of the memory that would be free
  // without them; the rest is for solves and decoders.
  virtual bool MayStay(const std::shared_ptr<const Array>& /*array*/) { return false; }

  // c = alpha a b + beta c.
  virtual void Gemm(const Operand& a, const Operand& b, const Scales& scales, Array& c) = 0;
  // c = a b (left) or b a (right), with symmetric a.
  virtual void Symm(Side side, const Array& a, const Array& b, Array& c) = 0;
  // Solves a x = b. b becomes x, and the upper triangle of a becomes U with a = U' U. False if a is not positive
  // definite to working precision; the contents of both are then undefined. If `rcond` is not null, it receives an
  // estimate of the reciprocal condition number (1-norm), which is made on the host: a GPU's matrix and its factor are
  // downloaded for it.
  virtual bool CholeskySolve(Array& a, Array& b, double* rcond) = 0;
  // Eigenvalues of symmetric a, ascending; eigenvector j goes to row j of a. Throws Error if the iteration does not
  // converge, and on the host for a side above kMostEigen.
  virtual std::vector<double> Eigen(Array& a) = 0;
  // Reduces symmetric a to tridiagonal form.
  virtual Tridiagonal Tridiagonalize(Array& a) = 0;
  // Transforms rows from the basis of T to that of the original a: v becomes v Q'.
  virtual void Rotate(const Array& a, const Tridiagonal& t, Array& rows) = 0;
  // Transforms columns to the basis of T: b becomes Q' b.
  virtual void RotateColumns(const Array& a, const Tridiagonal& t, Array& b) = 0;
  // linalg::ShrunkSquares() of columns in the basis of T.
  virtual std::vector<double> ShrunkSquares(const Bidiagonal& root, std::span<const Bidiagonal> shrinkages,
                                            const Array& b) = 0;
  virtual void AddToDiagonal(double value, Array& a) = 0;
  // Multiplies row i by factors[i].
  virtual void ScaleRows(std::span<const double> factors, Array& a) = 0;
  // The dot product of each row of a with the same row of b.
  virtual std::vector<double> RowDots(const Array& a, const Array& b) = 0;

  ArrayPtr Uploaded(MatrixView<const double> from);
  Matrix<double> Downloaded(const Array& from);
  ArrayPtr Copied(const Array& from);
  ArrayPtr Product(const Operand& a, const Operand& b);
};

std::unique_ptr<Solver> MakeHostSolver(const Context& context);

// The eigenvectors of T for its `count` largest eigenvalues, as rows (count, n), the largest first; computed on the
// host. Throws Error if the iteration does not converge.
Matrix<double> LeadingVectors(const Tridiagonal& t, int64_t count);
// solver.Tridiagonalize(a). Throws Error if a is not finite.
Tridiagonal FiniteTridiagonal(Solver& solver, Array& a);

// The eigenvectors of symmetric a for its `count` largest eigenvalues as rows, the largest first. At most a third of
// the work of Eigen(). Overwrites a. Throws Error if it does not converge or a is not finite.
struct LeadingEigenpairs {
  Tridiagonal reduced;  // a in another basis
  ArrayPtr vectors;     // (count, n)

  // All eigenvalues, ascending. This call computes them, on the host.
  std::vector<double> Values() const { return Eigenvalues(reduced); }
};
LeadingEigenpairs LeadingEigen(Solver& solver, Array& a, int64_t count);

// True if `flops` of work take longer on the host than transferring the `bytes` of operands and results to a GPU.
bool WorthMoving(double flops, double bytes);
// Calls body(solver) with the context's solver, if there is one and the problem is worth the transfer. Returns false
// otherwise, or if its memory is too small: the caller must then solve the problem on the host from the start.
bool Moved(const Context& context, double flops, double elements, const std::function<void(Solver&)>& body);
// Returns body(solver) with the context's solver if Moved() is true, otherwise with the host's solver.
template <typename Body>
auto WithSolver(const Context& context, double flops, double elements, const Body& body) {
  std::optional<decltype(body(std::declval<Solver&>()))> result;
  if (!Moved(context, flops, elements, [&](Solver& solver) { result = body(solver); }))
    result = body(*MakeHostSolver(context));
  return *std::move(result);
}

}  // namespace shiftrt::linalg
