// SPDX-License-Identifier: Apache-2.0
// The parts that the tests of all kernels of the CPU share: running a test on every instruction set and precision,
// poisoned matrices and stored tensors.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/check.h"
#include "runtime/context.h"
#include "runtime/tensor.h"
#include "tests/kernels/exact.h"

namespace shiftrt::test {

// A test that runs once per instruction set.
class OnEveryIsa : public testing::TestWithParam<Isa> {
 protected:
  static Context On(int threads) { return {threads, GetParam()}; }
  const Context context_ = On(1);  // the number of threads does not change results, as the tests with threads show
};

inline std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  // kAvx512BFloat16 has only rounded products of its own (RoundedPrecisions).
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx})
    if (isa <= BestIsa() || (isa == Isa::kAvx512 && SHIFTRT_EMULATED_AVX512) ||
        (isa == Isa::kAmx && SHIFTRT_EMULATED_AMX))
      isas.push_back(isa);
  return isas;
}

#define SHIFTRT_ON_EVERY_ISA(suite)                                               \
  INSTANTIATE_TEST_SUITE_P(Isas, suite, testing::ValuesIn(test::SupportedIsas()), \
                           [](const auto& info) { return std::string(Name(info.param)); })

// An instruction set, and the precision of its products.
struct Precision {
  Isa isa;
  Products products;
};

// A test that runs once per instruction set and precision.
class OnEveryPrecision : public testing::TestWithParam<Precision> {
 protected:
  static Context On(int threads) {
    Context context{threads, GetParam().isa};
    context.products = GetParam().products;
    return context;
  }
  static bool rounded() { return GetParam().products == Products::kBFloat16; }
  // The type of the numbers that a product of so many rows multiplies.
  static DType Multiplied(int64_t rows) { return rounded() && rows > 4 ? DType::kBFloat16 : DType::kFloat32; }
  const Context context_ = On(1);
};

// On any CPU there is at least one of the two, or its emulation.
inline std::vector<Precision> RoundedPrecisions() {
  std::vector<Precision> precisions;
  for (const auto& [isa, emulated] :
       {std::pair{Isa::kAvx512BFloat16, SHIFTRT_EMULATED_AVX512BF16}, {Isa::kAmx, SHIFTRT_EMULATED_AMX}})
    if (isa <= BestIsa() || emulated) precisions.push_back({isa, Products::kBFloat16});
  return precisions;
}
inline std::vector<Precision> Precisions() {
  std::vector<Precision> precisions = RoundedPrecisions();
  for (const Isa isa : SupportedIsas()) precisions.push_back({isa, Products::kFloat32});
  return precisions;
}

#define SHIFTRT_ON_PRECISIONS(suite, precisions)                                                    \
  INSTANTIATE_TEST_SUITE_P(Precisions, suite, testing::ValuesIn(precisions), [](const auto& info) { \
    return fmt::format("{}_{}", Name(info.param.isa), Name(info.param.products));                   \
  })

// A float32 matrix with `pad` elements of padding after each row. It is filled with NaN, so that elements that a kernel
// does not write, or reads outside the view, are found.
class Padded {
 public:
  Padded(int64_t rows, int64_t cols, int64_t pad = 5) : storage_(rows, cols + pad), cols_(cols) {
    for (float& x : storage_.span()) x = kNan;
  }
  // `values` are dense.
  static Padded Of(int64_t rows, int64_t cols, const std::vector<double>& values, int64_t pad = 5) {
    Padded m(rows, cols, pad);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) m(i, j) = static_cast<float>(values[i * cols + j]);
    return m;
  }
  static Padded Normal(int64_t rows, int64_t cols, uint64_t seed, double scale = 1) {
    return Of(rows, cols, Drawn(rows * cols, seed, scale));
  }
  Padded Copy() const {
    Padded m(storage_.rows(), cols_, storage_.cols() - cols_);
    m.storage_ = storage_.Clone();
    return m;
  }
  int64_t rows() const { return storage_.rows(); }
  int64_t cols() const { return cols_; }
  MatrixView<float> view() const { return storage_.view().Cols(0, cols_); }
  float& operator()(int64_t i, int64_t j) const { return storage_(i, j); }
  // Dense; it also expects that the padding is untouched.
  std::vector<double> Values() const {
    EXPECT_TRUE(PaddingIsUntouched());
    std::vector<double> values;
    for (int64_t i = 0; i < rows(); ++i) values.insert(values.end(), view().row(i), view().row(i) + cols_);
    return values;
  }
  bool PaddingIsUntouched() const {
    for (int64_t i = 0; i < storage_.rows(); ++i)
      for (int64_t j = cols_; j < storage_.cols(); ++j)
        if (!std::isnan(storage_(i, j))) return false;
    return true;
  }

 private:
  Matrix<float> storage_;
  int64_t cols_;
};

// Compares bits, including NaN and the padding.
inline bool Identical(const Padded& a, const Padded& b) {
  for (int64_t i = 0; i < a.rows(); ++i)
    for (int64_t j = 0; j < a.cols(); ++j)
      if (std::bit_cast<uint32_t>(a(i, j)) != std::bit_cast<uint32_t>(b(i, j))) return false;
  return true;
}

// A tensor in its stored type and the exact values of its elements. Like a tensor of a mapped checkpoint, it need not
// be aligned: it starts one element after the start of its buffer.
class Stored {
 public:
  Stored(DType dtype, std::vector<int64_t> shape, const std::vector<double>& values)
      : bytes_(SizeOf(dtype) * (values.size() + 1)) {
    view = {bytes_.data() + SizeOf(dtype), dtype, std::move(shape)};
    for (size_t i = 0; i < values.size(); ++i) {
      switch (dtype) {
        case DType::kFloat32: Put<float>(i, values[i]); break;
        case DType::kFloat16: Put<Float16>(i, values[i]); break;
        case DType::kBFloat16: Put<BFloat16>(i, values[i]); break;
        case DType::kFloat64: Put<double>(i, values[i]); break;
        default: ADD_FAILURE() << "values cannot be stored as " << Name(dtype); return;
      }
    }
  }
  static Stored Normal(DType dtype, std::vector<int64_t> shape, uint64_t seed, double scale = 1) {
    int64_t size = 1;
    for (const int64_t side : shape) size *= side;
    return {dtype, std::move(shape), Drawn(size, seed, scale)};
  }

  TensorView view;
  std::vector<double> values;

 private:
  template <typename T>
  void Put(size_t i, double value) {
    const T stored(static_cast<float>(value));
    std::memcpy(bytes_.data() + sizeof(T) * (i + 1), &stored, sizeof(T));
    values.push_back(static_cast<double>(static_cast<float>(stored)));
  }
  std::vector<std::byte> bytes_;
};

constexpr DType kStoredTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

}  // namespace shiftrt::test
