// SPDX-License-Identifier: Apache-2.0
#include "bench/probe.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "runtime/parallel.h"
#include "runtime/stopwatch.h"
#include "runtime/tensor.h"

namespace shiftrt {

namespace {

template <typename Work>
double Seconds(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return SecondsSince(start);
}

uint64_t SumWords(const uint64_t* data, int64_t begin, int64_t end) {
  uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = begin; i < end; ++i) sum += data[i];
  return sum;
}

constexpr int64_t kRounds = 20'000'000;
constexpr int kChains = 12;  // enough independent sums to hide the latency of multiply-adds on two execution ports

__attribute__((target("avx2,fma"))) float MultiplyAddAvx2() {
  __m256 sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = _mm256_set1_ps(static_cast<float>(c));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (int64_t i = 0; i < kRounds; ++i)
    for (int c = 0; c < kChains; ++c) sum[c] = _mm256_fmadd_ps(sum[c], a, b);
  float out = 0;
  for (int c = 0; c < kChains; ++c) out += _mm256_cvtss_f32(sum[c]);
  return out;
}

__attribute__((target("avx512f"))) float MultiplyAddAvx512() {
  __m512 sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = _mm512_set1_ps(static_cast<float>(c));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (int64_t i = 0; i < kRounds; ++i)
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_fmadd_ps(sum[c], a, b);
  float out = 0;
  for (int c = 0; c < kChains; ++c) out += _mm512_cvtss_f32(sum[c]);
  return out;
}

// Sums of pairs of products of bfloat16 numbers, as in kernels/cpu/simd_avx512bf16.cc.
__attribute__((target("avx512f,avx512bf16"))) float MultiplyAddPairs() {
  __m512 sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = _mm512_set1_ps(static_cast<float>(c));
  const auto a = (__m512bh)_mm512_set1_epi16(0x3f7f), b = (__m512bh)_mm512_set1_epi16(0x3a83);
  for (int64_t i = 0; i < kRounds; ++i)
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_dpbf16_ps(sum[c], a, b);
  float out = 0;
  for (int c = 0; c < kChains; ++c) out += _mm512_cvtss_f32(sum[c]);
  return out;
}

// Sums of pairs of products of 16-bit integers, as in kernels/cpu/integer_tiles.h.
__attribute__((target("avx512f,avx512vnni"))) float MultiplyAddIntegers() {
  __m512i sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = _mm512_set1_epi32(c);
  const __m512i a = _mm512_set1_epi16(321), b = _mm512_set1_epi16(-123);
  for (int64_t i = 0; i < kRounds; ++i)
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_dpwssd_epi32(sum[c], a, b);
  int out = 0;
  for (int c = 0; c < kChains; ++c) out += _mm512_cvtsi512_si32(sum[c]);
  return static_cast<float>(out);
}

// Products of 16 x 32 by 32 x 16 bfloat16 tiles, into four tiles of sums that hide the latency. The elements are not
// zero, because the CPU multiplies zeros at a higher clock frequency.
constexpr int64_t kTileRounds = 1'000'000;
constexpr double kTileFlops = 4 * 2.0 * 16 * 16 * 32;  // FLOP of one round

void MultiplyTiles() {
  struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t reserved[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
  };
  const Config config;
  alignas(64) uint16_t values[512];
  for (int i = 0; i < 512; ++i) values[i] = static_cast<uint16_t>((i % 2 == 0 ? 0x3f80 : 0xbf80) + i * 37 % 128);
  __asm__ volatile("ldtilecfg %0\n\ttileloadd (%1,%2,1), %%tmm4\n\ttileloadd (%1,%2,1), %%tmm5" ::"m"(config),
                   "r"(values), "r"(int64_t{64})
                   : "memory");
  for (int64_t i = 0; i < kTileRounds; ++i)
    __asm__ volatile(
        "tdpbf16ps %tmm5, %tmm4, %tmm0\n\ttdpbf16ps %tmm5, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm5, %tmm4, %tmm2\n\ttdpbf16ps %tmm5, %tmm4, %tmm3");
  __asm__ volatile("tilerelease");
}

float MultiplyAddPortable() {
  float sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = static_cast<float>(c);
  for (int64_t i = 0; i < kRounds; ++i)
    for (int c = 0; c < kChains; ++c) sum[c] = sum[c] * 0.999f + 1e-3f;
  float out = 0;
  for (float s : sum) out += s;
  return out;
}

}  // namespace

double MeasureReadBandwidth(const Context& context) {
  const int64_t words = int64_t{64} << 20;  // 512 MiB
  Buffer<uint64_t> data(words);
  ParallelFor(context, words, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) data[i] = static_cast<uint64_t>(i);
  });
  std::atomic<uint64_t> sink = 0;
  double best = 0;
  for (int pass = 0; pass < 6; ++pass) {
    const double seconds = Seconds([&] {
      ParallelFor(context, words, 1, [&](int64_t begin, int64_t end) { sink += SumWords(data.data(), begin, end); });
    });
    best = std::max(best, 8.0 * static_cast<double>(words) / seconds);
  }
  return best;
}

namespace {

// FLOP per second of all threads, where one call of `work` adds up kChains vectors of `products` products kRounds
// times.
double Peak(const Context& context, int64_t products, float (*work)()) {
  std::atomic<float> sink = 0;
  double best = 0;
  for (int pass = 0; pass < 3; ++pass) {
    const double seconds =
        Seconds([&] { ParallelFor(context, context.threads, 1, [&](int64_t, int64_t) { sink = work(); }); });
    best = std::max(best, 2.0 * kChains * static_cast<double>(products) * kRounds * context.threads / seconds);
  }
  return best;
}

}  // namespace

double MeasureFloat32Peak(const Context& context) {
  if (context.isa >= Isa::kAvx512) return Peak(context, 16, MultiplyAddAvx512);
  if (context.isa == Isa::kAvx2) return Peak(context, 8, MultiplyAddAvx2);
  return Peak(context, 1, MultiplyAddPortable);
}

double MeasureProductPeak(const Context& context, DType weights) {
  const bool rounded = context.products == Products::kBFloat16;
  if (rounded && context.isa != Isa::kAmx) return Peak(context, 32, MultiplyAddPairs);
  if (IsQuantised(weights) && !rounded && context.isa >= Isa::kAvx512BFloat16)
    return Peak(context, 32, MultiplyAddIntegers);
  if (context.isa != Isa::kAmx || (weights == DType::kFloat32 && !rounded)) return MeasureFloat32Peak(context);
  double best = 0;
  for (int pass = 0; pass < 3; ++pass) {
    const double seconds =
        Seconds([&] { ParallelFor(context, context.threads, 1, [&](int64_t, int64_t) { MultiplyTiles(); }); });
    best = std::max(best, kTileFlops * static_cast<double>(kTileRounds) * context.threads / seconds);
  }
  return best / (rounded ? 1 : weights == DType::kBFloat16 ? 3 : 5);
}

}  // namespace shiftrt
