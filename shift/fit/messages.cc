// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/messages.h"

namespace shiftrt {

namespace {

template <typename T>
void PutMatrix(Packer& out, const Matrix<T>& matrix) {
  out.Put(matrix.rows()).Put(matrix.cols()).Put(std::span<const T>(matrix.data(), matrix.size()));
}

template <typename T>
Matrix<T> GetMatrix(Unpacker& in) {
  const auto rows = in.Get<int64_t>(), cols = in.Get<int64_t>();
  Matrix<T> matrix(rows, cols);
  in.Get(std::span<T>(matrix.data(), matrix.size()));
  return matrix;
}

}  // namespace

void Put(Packer& out, const RidgeSolution& solution) {
  PutMatrix(out, solution.a.host());
  PutMatrix(out, solution.b);
  out.Put(solution.lambda).Put(solution.condition).PutText(solution.warning);
}

void Get(Unpacker& in, RidgeSolution& solution) {
  solution.a = GetMatrix<double>(in);
  solution.b = GetMatrix<double>(in);
  solution.lambda = in.Get<double>();
  solution.condition = in.Get<double>();
  solution.warning = in.GetText();
}

void Put(Packer& out, const Lra& lra) {
  for (const Matrix<float>* matrix : {&lra.a, &lra.p, &lra.q, &lra.b}) PutMatrix(out, *matrix);
}

void Get(Unpacker& in, std::shared_ptr<const Lra>& lra) {
  auto made = std::make_shared<Lra>();
  for (Matrix<float>* matrix : {&made->a, &made->p, &made->q, &made->b}) *matrix = GetMatrix<float>(in);
  lra = std::move(made);
}

void Put(Packer& out, const SiteReport& report) {
  out.Put(report.tokens).Put(report.lambda).Put(report.rank).Put(report.r2_fit).Put(report.r2_heldout);
  out.Put(report.condition).Put(report.effective_rank).PutAll(report.singular_values);
  out.PutText(report.part).PutText(report.warning);
}

void Get(Unpacker& in, SiteReport& report) {
  report.tokens = in.Get<int64_t>();
  report.lambda = in.Get<double>();
  report.rank = in.Get<int64_t>();
  report.r2_fit = in.Get<double>();
  report.r2_heldout = in.Get<double>();
  report.condition = in.Get<double>();
  report.effective_rank = in.Get<double>();
  report.singular_values = in.GetAll<double>();
  report.part = in.GetText();
  report.warning = in.GetText();
}

}  // namespace shiftrt
