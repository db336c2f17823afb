// Float64 dense linear algebra through BLAS and LAPACK (OpenBLAS). Matrices are row-major, views may be strided.
#pragma once

#include <vector>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt::linalg {

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
