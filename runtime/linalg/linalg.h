// SPDX-License-Identifier: Apache-2.0
// Float64 dense linear algebra on host memory, by BLAS and LAPACK (OpenBLAS), or on the device of the context's Solver
// if the problem is worth the transfer. Matrices are row-major, views may be strided.
#pragma once

#include "runtime/linalg/solver.h"

namespace shiftrt::linalg {

// c = alpha * op(a) op(b) + beta * c.
void Gemm(const Context& context, bool transpose_a, bool transpose_b, double alpha, MatrixView<const double> a,
          MatrixView<const double> b, double beta, MatrixView<double> c);
// c = a b (left), or b a (right), with symmetric a, upper triangle read.
void Symm(const Context& context, Side side, MatrixView<const double> a, MatrixView<const double> b,
          MatrixView<double> c);
// c += a' a; only the upper triangle (j >= i) of c is written.
void AddGram(const Context& context, MatrixView<const double> a, MatrixView<double> c);
// c = a' a in float32; only the upper triangle of c is written.
void Gram(const Context& context, MatrixView<const float> a, MatrixView<float> c);
// Throws Error naming an element of the upper triangle if one is not finite.
void CheckFinite(MatrixView<const double> a);
// Copies the upper triangle to the lower.
void SymmetrizeFromUpper(MatrixView<double> c);
// Solves a x = b for symmetric positive definite a; b becomes x, a is overwritten. False if a is not positive definite
// to working precision. If `rcond` is not null, it receives an estimate of the reciprocal condition number (1-norm).
bool CholeskySolve(const Context& context, MatrixView<double> a, MatrixView<double> b, double* rcond);
// The 1-norm of symmetric a, upper triangle read.
double SymmetricNorm1(MatrixView<const double> a);
// Estimates the reciprocal condition number (1-norm) of a matrix with this 1-norm, whose Cholesky factor U is in the
// upper triangle of `factor`.
double ReciprocalCondition(const Context& context, MatrixView<const double> factor, double norm);

// Solves x a = b for any square a, on the host; b becomes x, a is overwritten. Returns an estimate of the reciprocal
// condition number of a (1-norm). Where that is below `least`, b is left as it was.
double SolveFromRight(const Context& context, MatrixView<double> a, MatrixView<double> b, double least);

}  // namespace shiftrt::linalg
