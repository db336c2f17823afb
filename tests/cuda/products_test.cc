// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/matmul.h"
#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

class ProductsOnGpu : public CudaTest {
 protected:
  struct Form {
    bool x_transposed, w_transposed;
    int64_t gap = 0;     // elements between the rows of each array, which stay as they are
    int64_t offset = 0;  // offset of the first element of each array
  };
  template <typename T>
  void Check(int64_t m, int64_t n, int64_t k, const Form& form, bool accumulate) {
    const int64_t x_rows = form.x_transposed ? k : m, w_rows = form.w_transposed ? k : n;
    const int64_t x_stride = (form.x_transposed ? m : k) + form.gap, w_stride = (form.w_transposed ? n : k) + form.gap,
                  y_stride = n + form.gap;
    const auto x = Input<T>::Normal(stream_, form.offset + x_rows * x_stride, 1),
               w = Input<T>::Normal(stream_, form.offset + w_rows * w_stride, 2);
    const auto y = Input<float>::Normal(stream_, form.offset + m * y_stride, 3);
    Products products(stream_);
    products.MatMul({.x = {x.data() + form.offset, DTypeOf<T>::value},
                     .w = {w.data() + form.offset, DTypeOf<T>::value},
                     .y = {y.data() + form.offset, DType::kFloat32},
                     .m = m,
                     .n = n,
                     .k = k,
                     .accumulate = accumulate,
                     .x_transposed = form.x_transposed,
                     .w_transposed = form.w_transposed,
                     .x_stride = form.gap > 0 ? x_stride : 0,
                     .w_stride = form.gap > 0 ? w_stride : 0,
                     .y_stride = form.gap > 0 ? y_stride : 0});
    const std::vector<double> found = Now(stream_, y);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < y_stride; ++j) {
        const int64_t at = form.offset + i * y_stride + j;
        if (j >= n) {
          ASSERT_EQ(found[at], y[at]) << "between rows " << i << " and " << i + 1;
          continue;
        }
        double sum = accumulate ? y[at] : 0, size = std::abs(sum);
        for (int64_t l = 0; l < k; ++l) {
          const double product = x[form.offset + (form.x_transposed ? l * x_stride + i : i * x_stride + l)] *
                                 w[form.offset + (form.w_transposed ? l * w_stride + j : j * w_stride + l)];
          sum += product;
          size += std::abs(product);
        }
        EXPECT_CLOSE(found[at], sum, kUnit<float> * static_cast<double>(k + 2) * size, at);
      }
    }
  }
};

TEST_F(ProductsOnGpu, OfOperandsStoredEitherWayAgreeWithFloat64) {
  for (const bool x_transposed : {false, true}) {
    for (const bool w_transposed : {false, true}) {
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(testing::Message() << x_transposed << w_transposed << accumulate);
        Check<BFloat16>(24, 40, 72, {x_transposed, w_transposed}, accumulate);
        Check<float>(24, 40, 72, {x_transposed, w_transposed}, accumulate);
        Check<float>(17, 3, 29, {x_transposed, w_transposed}, accumulate);  // as of a LoRA of rank 3
        Check<BFloat16>(16, 24, 32, {x_transposed, w_transposed, 8, 8}, accumulate);
        Check<float>(16, 24, 32, {x_transposed, w_transposed, 4, 1}, accumulate);  // parameters start anywhere
      }
    }
  }
}

}  // namespace
}  // namespace shiftrt::gpu
