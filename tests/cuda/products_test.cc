// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/matmul.h"
#include "tests/cuda/fixture.h"
#include "tests/kernels/product_cases.h"

namespace shiftrt::gpu {
namespace {

class ProductsOnGpu : public CudaTest {
 protected:
  struct Form {
    bool x_transposed, w_transposed, accumulate;
  };
  // `gap`: elements between the rows of each array, which stay as they are. `offset`: that of the first element of each
  // array.
  template <typename T>
  void Check(const test::ProductProblem& p, const Form& form, int64_t gap, int64_t offset) {
    const auto& [m, n, k] = p.shape;
    const auto placed = [&](const std::vector<double>& dense, int64_t rows, int64_t cols) {
      std::vector<double> all(offset + rows * (cols + gap), 3.0);
      for (int64_t i = 0; i < rows * cols; ++i) all[offset + i / cols * (cols + gap) + i % cols] = dense[i];
      return all;
    };
    const Input<T> x(stream_, form.x_transposed ? placed(test::Transposed(p.x, m, k), k, m) : placed(p.x, m, k)),
        w(stream_, form.w_transposed ? placed(p.b, k, n) : placed(test::Transposed(p.b, k, n), n, k));
    const Input<float> y(stream_, placed(p.before, m, n));
    const auto stride = [&](int64_t cols) { return gap > 0 ? cols + gap : 0; };
    Products products(stream_);
    products.MatMul({.x = {x.data() + offset, DTypeOf<T>::value},
                     .w = {w.data() + offset, DTypeOf<T>::value},
                     .y = {y.data() + offset, DType::kFloat32},
                     .m = m,
                     .n = n,
                     .k = k,
                     .accumulate = form.accumulate,
                     .x_transposed = form.x_transposed,
                     .w_transposed = form.w_transposed,
                     .x_stride = stride(form.x_transposed ? m : k),
                     .w_stride = stride(form.w_transposed ? n : k),
                     .y_stride = stride(n)});
    std::vector<double> dense;
    const std::vector<double> found = Now(stream_, y);
    for (int64_t at = 0; at < std::ssize(found); ++at) {
      if (at >= offset && (at - offset) % (n + gap) < n) {
        dense.push_back(found[at]);
      } else {
        ASSERT_EQ(found[at], y[at]) << "written at " << at;
      }
    }
    test::ExpectClose("product", dense, p.Exactly(form.accumulate), {static_cast<double>(k + 2)});
  }
};

// Operands of 16 bits have sides that are multiples of 8, as those of models.
TEST_F(ProductsOnGpu, OfOperandsStoredEitherWayAgreeWithFloat64) {
  for (const test::ProductShape& shape : test::ProductShapes()) {
    if (TooLarge(shape.m * shape.n * shape.k, 70'000)) continue;
    const bool in_eights = shape.m % 8 == 0 && shape.n % 8 == 0 && shape.k % 8 == 0;
    const test::ProductProblem wide(shape), narrow(shape, DType::kBFloat16, DType::kBFloat16);
    for (const bool x_transposed : {false, true}) {
      for (const bool w_transposed : {false, true}) {
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(testing::Message() << shape.Name() << " " << x_transposed << w_transposed << accumulate);
          const Form form{x_transposed, w_transposed, accumulate};
          Check<float>(wide, form, 0, 0);
          Check<float>(wide, form, 4, 1);  // parameters start anywhere
          if (in_eights) Check<BFloat16>(narrow, form, 0, 0);
          if (in_eights) Check<BFloat16>(narrow, form, 8, 8);
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace shiftrt::gpu
