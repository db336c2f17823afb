// Where float64 problems of some size are solved: on the host (BLAS and LAPACK), or on the device a Context's solver is
// for. What is written against a Solver keeps its matrices where they are worked on, and brings over results.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt::linalg {

// A matrix (rows, cols) in the memory of the Solver that made it; goes before the solver does.
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

// a = Q T Q' with T tridiagonal; Q is in what `a` became, and in the factors of its reflectors.
struct Tridiagonal {
  std::vector<double> diagonal, beside, reflectors;
};

// Shapes fit, and symmetric arrays are read in their upper triangle. Throws OutOfMemory where its memory is too small.
class Solver {
 public:
  virtual ~Solver() = default;
  virtual ArrayPtr Make(int64_t rows, int64_t cols) = 0;  // not initialised
  virtual void Upload(MatrixView<const double> from, Array& to) = 0;
  virtual void Download(const Array& from, MatrixView<double> to) = 0;

  // c = alpha a b + beta c.
  virtual void Gemm(const Operand& a, const Operand& b, const Scales& scales, Array& c) = 0;
  // c = a b, or b a, with symmetric a.
  virtual void Symm(Side side, const Array& a, const Array& b, Array& c) = 0;
  // Solves a x = b, b becoming x and a becoming U in its upper triangle, a = U' U. False, and both are spoilt, where a
  // is not positive definite to working precision.
  virtual bool CholeskySolve(Array& a, Array& b) = 0;
  // Of symmetric a: eigenvalues ascending, eigenvector j in row j of a. Throws Error where the iteration does not
  // converge.
  virtual std::vector<double> Eigen(Array& a) = 0;
  // Of symmetric a.
  virtual Tridiagonal Tridiagonalize(Array& a) = 0;
  // Rows that are vectors of T become those of the a it was made of: v Q'.
  virtual void Rotate(const Array& a, const Tridiagonal& t, Array& rows) = 0;
  // Row i times factors[i].
  virtual void ScaleRows(std::span<const double> factors, Array& a) = 0;
  // Sum of squares of each row.
  virtual std::vector<double> RowSquares(const Array& a) = 0;

  ArrayPtr Uploaded(MatrixView<const double> from);
  Matrix<double> Downloaded(const Array& from);
  ArrayPtr Product(const Operand& a, const Operand& b);
};

std::unique_ptr<Solver> MakeHostSolver(const Context& context);

// All eigenvalues of symmetric a, ascending, and eigenvectors of the `count` largest in rows, the largest one's first:
// a third of the work of Eigen() or less. a is spoilt. Throws Error where it does not converge, or a holds a NaN.
struct LeadingEigenpairs {
  std::vector<double> values;
  ArrayPtr vectors;  // (count, n)
};
LeadingEigenpairs LeadingEigen(Solver& solver, Array& a, int64_t count);

// Whether `flops` of work on `bytes` of operands and results take longer here than the bytes on their way.
bool WorthMoving(double flops, double bytes);
// Calls body(solver) with the context's solver, if it has one and the problem is worth the way. False where it has not,
// or its memory is full of other things: the problem is then to be solved here, from its beginning.
bool Moved(const Context& context, double flops, double elements, const std::function<void(Solver&)>& body);
// What body(solver) returns: of the context's solver as Moved() says, else of the host's.
template <typename Body>
auto WithSolver(const Context& context, double flops, double elements, const Body& body) {
  std::optional<decltype(body(std::declval<Solver&>()))> result;
  if (!Moved(context, flops, elements, [&](Solver& solver) { result = body(solver); }))
    result = body(*MakeHostSolver(context));
  return *std::move(result);
}

}  // namespace shiftrt::linalg
