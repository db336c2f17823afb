// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/matmul.h on the emulator: three loops replace cuBLASLt.
#include "kernels/cuda/matmul.h"

#include "kernels/emulated/machine.h"

namespace shiftrt::gpu {

struct Products::Impl {
  Stream stream;
};
Products::Products(Stream stream) : impl_(std::make_unique<Impl>(stream)) {}
Products::~Products() = default;

static void Multiply(const MatMulProblem& problem) {
  WithType("matrix product", problem.x.dtype, [&](auto in) {
    WithType("matrix product", problem.y.dtype, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      const auto* x = static_cast<const In*>(problem.x.data);
      const auto* w = static_cast<const In*>(problem.w.data);
      auto* y = static_cast<Out*>(problem.y.data);
      const int64_t x_rows = problem.x_transposed ? 1 : problem.XStride(),
                    x_depth = problem.x_transposed ? problem.XStride() : 1;
      const int64_t w_rows = problem.w_transposed ? 1 : problem.WStride(),
                    w_depth = problem.w_transposed ? problem.WStride() : 1;
      for (int64_t i = 0; i < problem.m; ++i) {
        for (int64_t j = 0; j < problem.n; ++j) {
          Out& to = y[i * problem.YStride() + j];
          float sum = 0;
          for (int64_t l = 0; l < problem.k; ++l)
            sum += static_cast<float>(x[i * x_rows + l * x_depth]) * static_cast<float>(w[j * w_rows + l * w_depth]);
          to = Out(problem.accumulate ? sum + static_cast<float>(to) : sum);  // in this order, as in an epilogue
        }
      }
    });
  });
}

void Products::MatMul(const MatMulProblem& problem) {
  emu::CheckReach(impl_->stream.device, problem, "a product");
  emu::Submit([problem] { Multiply(problem); });
}

}  // namespace shiftrt::gpu
