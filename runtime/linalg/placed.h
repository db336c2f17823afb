// SPDX-License-Identifier: Apache-2.0
// Float64 matrices that record whether they are in host memory or in a solver's, as `Rows` do (engine/rows.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/linalg/solver.h"
#include "runtime/tensor.h"

namespace shiftrt::linalg {

// A matrix (rows, cols) in host memory, in the memory of a solver, or in both. A copy is made when the matrix is needed
// in the other memory, and both copies stay. Not for use by several threads.
class PlacedMatrix {
 public:
  PlacedMatrix() = default;
  // A matrix of zeros, for which memory is allocated at the first use.
  PlacedMatrix(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  PlacedMatrix(Matrix<double> on_host);
  // A matrix with the values of `array`, which belongs to this solver. The array stays there if the solver allows it
  // (Solver::MayStay); otherwise the values are copied to the host.
  PlacedMatrix(Solver& solver, std::shared_ptr<const Array> array);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  bool zeros() const { return !host_ && there_ == nullptr; }  // no memory is allocated yet

  const Matrix<double>& host() const;
  // The matrix in host memory; the copy in a solver's memory is dropped, because the caller changes the values.
  const Matrix<double>& ToWrite();
  // Moves the matrix to host memory.
  void ToHost();
  // The matrix in the memory of `solver`. If it is copied there, the copy stays if the solver allows it. The result is
  // valid as long as this matrix, and must be destroyed before the solver.
  std::shared_ptr<const Array> On(Solver& solver) const;
  // Some elements, as Solver::Elements, read from whichever memory has them.
  std::vector<double> Elements(int64_t first, int64_t step, int64_t count) const;
  // A copy in host memory.
  PlacedMatrix Clone() const;

 private:
  int64_t rows_ = 0, cols_ = 0;
  mutable std::optional<Matrix<double>> host_;
  mutable std::shared_ptr<Solver> solver_;  // the solver that made there_
  mutable std::shared_ptr<const Array> there_;
};

}  // namespace shiftrt::linalg
