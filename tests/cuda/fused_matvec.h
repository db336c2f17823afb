// SPDX-License-Identifier: Apache-2.0
// A case of tests/kernels/fused_product_cases.h as a product of one token on a GPU, for weights of every type.
#pragma once

#include "kernels/cuda/matvec.h"
#include "tests/cuda/fixture.h"
#include "tests/kernels/fused_product_cases.h"

namespace shiftrt::gpu {

struct FusedMatVec {
  // `w`: the weights of the case on the device.
  FusedMatVec(Stream on, const test::FusedProductCase& c, const test::FusedProductProblem& p, const WeightRows& w)
      : stream(on),
        x(on, p.x),
        weight(on, p.norm),
        bias(on, p.bias),
        addend(on, p.before),
        y(on, c.outputs()),
        problem{.w = w,
                .rows = c.rows,
                .cols = c.cols,
                .x = x.data(),
                .norm_weight = c.normed ? weight.data() : nullptr,
                .eps = test::FusedProductProblem::kEps,
                .bias = c.biased ? bias.data() : nullptr,
                .y = y.data()} {}

  void Run(test::Epilogue epilogue) const {
    switch (epilogue) {
      case test::Epilogue::kNothing: return MatVec(stream, problem, 2);
      case test::Epilogue::kAddition: return MatVecAdd(stream, problem, addend.data(), 2);
      case test::Epilogue::kSilu: return MatVecGated(stream, Activation::kSilu, problem, 2);
      case test::Epilogue::kGeluTanh: return MatVecGated(stream, Activation::kGeluTanh, problem, 2);
    }
  }

  Stream stream;
  Input<float> x, weight, bias, addend;
  Output<float> y;
  MatVecProblem problem;
};

}  // namespace shiftrt::gpu
