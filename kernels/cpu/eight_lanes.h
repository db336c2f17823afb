// SPDX-License-Identifier: Apache-2.0
// Eight lanes of 32 bits, or sixteen of 16 bits: the width at which the products of quantised blocks work in every
// SimdBody, because a group of 32 weights fills a vector of 256 bits. Everything is in an anonymous namespace on
// purpose, as in simd_body_impl.h.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace shiftrt {
namespace {

using FourFloats = float __attribute__((vector_size(16)));
using EightFloats = float __attribute__((vector_size(32)));
using EightInts = int32_t __attribute__((vector_size(32)));
using SixteenWords = uint16_t __attribute__((vector_size(32)));
using SixteenBytes = int8_t __attribute__((vector_size(16)));

template <typename T>
inline T LoadAs(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline EightFloats Eight(float x) { return x - EightFloats{}; }

// first in lanes 0 to 3, second in the others.
inline EightFloats Eight(float first, float second) {
  return EightFloats{first, first, first, first, second, second, second, second};
}

inline EightFloats MultiplyAdd(EightFloats a, EightFloats b, EightFloats c) {
#if defined(__FMA__)
  return (EightFloats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

inline float Sum(EightFloats x) {
  for (int half = 4; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  return x[0];
}

// Bytes 8 kHalf to 8 kHalf + 7.
template <int kHalf>
inline EightFloats FloatsOf(SixteenBytes bytes) {
#if defined(__AVX2__)
  const auto all = (__m128i)bytes;
  return (EightFloats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(kHalf == 0 ? all : _mm_unpackhi_epi64(all, all)));
#else
  EightFloats floats;
  for (int i = 0; i < 8; ++i) floats[i] = static_cast<float>(bytes[8 * kHalf + i]);
  return floats;
#endif
}

// In each lane the sum of the products of two pairs of signed words, of a and b.
inline EightInts PairProducts(SixteenWords a, SixteenWords b) {
#if defined(__AVX2__)
  return (EightInts)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  const auto x = (EightInts)a, y = (EightInts)b;
  return (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

// The same, added to `sum`.
inline EightInts AddPairProducts(EightInts sum, SixteenWords a, SixteenWords b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return (EightInts)_mm256_dpwssd_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#else
  return sum + PairProducts(a, b);
#endif
}

}  // namespace
}  // namespace shiftrt
