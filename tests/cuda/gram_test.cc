// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gram.h"

#include "tests/cuda/fixture.h"
#include "tests/kernels/gram_cases.h"

namespace shiftrt::gpu {
namespace {

class GramOnGpu : public CudaTest {};

TEST_F(GramOnGpu, SumsAgreeWithFloat64) {
  for (const test::RidgeSumsCase& c : test::RidgeSumsCases()) {
    if (c.n % 8 != 0 || c.d % 8 != 0) continue;
    SCOPED_TRACE(c.Name());
    const test::RidgeSumsProblem problem(c);
    const std::vector<double> zeros((c.n + 1) * (std::max(c.n, c.d) + 1), 0.0);
    const DeviceBuffer<double> gram(stream_, std::span<const double>(zeros).first((c.n + 1) * (c.n + 1)), "a test"),
        cross(stream_, std::span<const double>(zeros).first((c.n + 1) * c.d), "a test");
    for (const test::RidgeSumsProblem::Call& call : problem.calls) {
      const Input<float> inputs(stream_, call.inputs), updates(stream_, call.updates);
      const DeviceBuffer<double> weights(stream_, std::span<const double>(call.weights), "a test");
      AddToRidgeSums(stream_,
                     {inputs.data(), updates.data(), c.weighted ? weights.data() : nullptr, call.tokens, c.n, c.d},
                     {gram.data(), cross.data()});
    }
    problem.Expect(Output<double>::Fetch(stream_, gram), Output<double>::Fetch(stream_, cross), 0);
    if (HasFailure()) return;
  }
}

TEST_F(GramOnGpu, RowProductsAgreeWithFloat64) {
  for (const test::RowProductsProblem& p : test::RowProductsProblems()) {
    const Input<float> a(stream_, p.a), b(stream_, p.b);
    const DeviceBuffer<RowProducts> products(stream_, p.tokens, "a test");
    ComputeRowProducts(stream_, a.data(), b.data(), p.tokens, p.n, products.data());
    p.Expect(Output<RowProducts>::Fetch(stream_, products));
  }
}

}  // namespace
}  // namespace shiftrt::gpu
