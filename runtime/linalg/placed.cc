// SPDX-License-Identifier: Apache-2.0
#include "runtime/linalg/placed.h"

#include <utility>

namespace shiftrt::linalg {

PlacedMatrix::PlacedMatrix(Matrix<double> on_host)
    : rows_(on_host.rows()), cols_(on_host.cols()), host_(std::move(on_host)) {}

PlacedMatrix::PlacedMatrix(Solver& solver, std::shared_ptr<const Array> array)
    : rows_(array->rows()), cols_(array->cols()) {
  if (solver.MayStay(array)) {
    solver_ = solver.shared_from_this();
    there_ = std::move(array);
  } else {
    host_ = solver.Downloaded(*array);
  }
}

const Matrix<double>& PlacedMatrix::host() const {
  if (!host_) host_ = there_ != nullptr ? solver_->Downloaded(*there_) : Matrix<double>::Zeros(rows_, cols_);
  return *host_;
}

const Matrix<double>& PlacedMatrix::ToWrite() {
  host();
  ToHost();
  return *host_;
}

void PlacedMatrix::ToHost() {
  if (there_ == nullptr) return;
  host();
  there_.reset();
  solver_.reset();
}

std::shared_ptr<const Array> PlacedMatrix::On(Solver& solver) const {
  if (there_ != nullptr && solver_.get() == &solver) return there_;
  std::shared_ptr<const Array> array = solver.Reading(host().view());
  if (solver.MayStay(array)) {
    there_ = array;  // frees another solver's array before that solver is released
    solver_ = solver.shared_from_this();
  }
  return array;
}

std::vector<double> PlacedMatrix::Elements(int64_t first, int64_t step, int64_t count) const {
  if (!host_ && there_ != nullptr) return solver_->Elements(*there_, first, step, count);
  std::vector<double> elements(count, 0.0);
  for (int64_t i = 0; host_ && i < count; ++i) elements[i] = host_->data()[first + i * step];
  return elements;
}

PlacedMatrix PlacedMatrix::Clone() const { return zeros() ? PlacedMatrix(rows_, cols_) : PlacedMatrix(host().Clone()); }

}  // namespace shiftrt::linalg
