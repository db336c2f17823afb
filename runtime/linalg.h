// Float64 dense linear algebra through BLAS and LAPACK (OpenBLAS), or through the context's Solver where the way to it
// is worth it. Matrices are row-major, views may be strided.
#pragma once

#include <span>
#include <vector>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt::linalg {

struct Operand {
  MatrixView<const double> view;  // as stored
  bool transposed = false;
};
struct Scales {
  double alpha = 1, beta = 0;
};

// Another device that solves what is in host memory. Arguments have been checked. Throws OutOfMemory, host memory as it
// was, and the problem is solved here.
class Solver {
 public:
  virtual ~Solver() = default;
  // c = alpha a b + beta c.
  virtual void Gemm(const Operand& a, const Operand& b, const Scales& scales, MatrixView<double> c) = 0;
  // As below, a becoming U in its upper triangle, a = U' U.
  virtual bool CholeskySolve(MatrixView<double> a, MatrixView<double> b) = 0;
  // Eigenvalues ascending, eigenvector j in row j of a. False where the iteration does not converge.
  virtual bool SymmetricEigen(MatrixView<double> a, std::span<double> values) = 0;
};
// Whether `flops` of work on `bytes` of operands and results take longer here than the bytes on their way.
bool WorthMoving(double flops, double bytes);

// c = alpha * op(a) op(b) + beta * c.
void Gemm(const Context& context, bool transpose_a, bool transpose_b, double alpha, MatrixView<const double> a,
          MatrixView<const double> b, double beta, MatrixView<double> c);
// c += a' a; only the upper triangle (j >= i) of c is written.
void AddGram(const Context& context, MatrixView<const double> a, MatrixView<double> c);
// Copies the upper triangle to the lower.
void SymmetrizeFromUpper(MatrixView<double> c);
// Solves a x = b for symmetric positive definite a; b becomes x, a is overwritten. False if a is not positive definite
// to working precision. `rcond`, where not null, receives the reciprocal condition number estimate (1-norm).
bool CholeskySolve(const Context& context, MatrixView<double> a, MatrixView<double> b, double* rcond);
// a = V diag(w) V' for symmetric a (upper triangle read): w ascending; a becomes V, eigenvector j in column j.
// Throws Error if the iteration does not converge or a holds a NaN.
std::vector<double> SymmetricEigen(const Context& context, MatrixView<double> a);
// The same for symmetric a when only the eigenvectors of the `count` largest eigenvalues are wanted, a third of the
// work or less: all eigenvalues, ascending, and vectors (n, count), the largest eigenvalue's first. a is overwritten.
struct LeadingEigen {
  std::vector<double> values;
  Matrix<double> vectors;
};
LeadingEigen SymmetricEigenLeading(const Context& context, MatrixView<double> a, int64_t count);

}  // namespace shiftrt::linalg
