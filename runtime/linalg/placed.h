// SPDX-License-Identifier: Apache-2.0
// Float64 matrices that know where they are, as rows do (engine/rows.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/linalg/solver.h"
#include "runtime/tensor.h"

namespace shiftrt::linalg {

// A matrix (rows, cols) in host memory, in the memory of a solver, or the same values in both. It is copied when it is
// asked for where it is not, and stays where it was, too. Not for use by several threads.
class PlacedMatrix {
 public:
  PlacedMatrix() = default;
  // Zeros, which take no memory until somebody asks for them.
  PlacedMatrix(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  PlacedMatrix(Matrix<double> on_host);
  // What `array` of this solver holds. It stays there if the solver lets it (Solver::MayStay), and is copied to the
  // host otherwise.
  PlacedMatrix(Solver& solver, std::shared_ptr<const Array> array);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  bool zeros() const { return !host_ && there_ == nullptr; }  // of which there is no copy yet

  const Matrix<double>& host() const;
  // On the host alone, and to be written there.
  const Matrix<double>& ToWrite();
  // Leaves the solver's memory.
  void ToHost();
  // In the memory of `solver`. Where that is not the host's, a copy made by this call stays if the solver lets it.
  // Valid as long as this matrix. It must be destroyed before the solver.
  std::shared_ptr<const Array> On(Solver& solver) const;
  // Solver::Elements, from where the matrix is.
  std::vector<double> Elements(int64_t first, int64_t step, int64_t count) const;
  // On the host.
  PlacedMatrix Clone() const;

 private:
  int64_t rows_ = 0, cols_ = 0;
  mutable std::optional<Matrix<double>> host_;
  mutable std::shared_ptr<Solver> solver_;  // of there_
  mutable std::shared_ptr<const Array> there_;
};

}  // namespace shiftrt::linalg
