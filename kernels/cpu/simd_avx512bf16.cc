// SPDX-License-Identifier: Apache-2.0
// Rounded products on AVX512-BF16, and integer products of quantised blocks on AVX512-VNNI. AMD's CPUs have both since
// Zen 4, and Intel's since Cooper Lake.
#include "kernels/cpu/integer_tiles.h"
#include "kernels/cpu/pair_product.h"
#include "kernels/cpu/quantised_pairs.h"

namespace shiftrt {
namespace {

#if defined(__AVX512BF16__)
struct Pairs : EmulatedPairs {
  static Reg Broadcast(float pair) { return _mm512_set1_ps(pair); }
  static Reg MultiplyAdd(Reg a, Reg b, Reg sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
  static Words Round(SixteenFloats low, SixteenFloats high) { return (Words)_mm512_cvtne2ps_pbh(high, low); }
  static SixteenFloats LoadFirst(const float* from, int64_t count) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
  }
};
#else
using Pairs = EmulatedPairs;
#endif

#if defined(__AVX512VNNI__)
struct Integers : EmulatedIntegers {
  static Reg MultiplyAdd(Reg a, Reg b, Reg sum) {
    return (Reg)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
  }
};
#else
using Integers = EmulatedIntegers;
#endif

}  // namespace

extern const IntegerProduct kAvx512IntegerRows = {&PreparedBytes, &PrepareGroups, &QuantisedRows<DotsOfPairs>};
extern const IntegerProduct kAvx512IntegerProduct = MakeIntegerProduct<Integers, 2>();
extern const IntegerProduct kAvx512RoundedIntegerProduct = MakeIntegerProduct<Integers, 1>();
extern const BlockProduct kAvx512RoundedProduct = MakePairProduct<Pairs>();
}  // namespace shiftrt
