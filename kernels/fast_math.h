// exp in float32, written so that compilers vectorise loops over it.
#pragma once

#include <bit>
#include <cstdint>

namespace shiftrt {

// e^x, relative error below 3e-7 for results in the normal range; 0 below -87.3, infinity-free: clamped above 88.3.
inline float FastExp(float x) {
  const float clamped = x < -87.3f ? -87.3f : x > 88.3f ? 88.3f : x;
  const float scaled = clamped * 1.44269504088896341f;
  const float whole = static_cast<float>(static_cast<int32_t>(scaled + (scaled < 0 ? -0.5f : 0.5f)));
  // x - whole ln 2 in two steps, so that the remainder is exact to the last bits.
  const float r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;
  const float p =
      1.0f +
      r * (1.0f + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f)))));
  const float power = std::bit_cast<float>((static_cast<int32_t>(whole) + 127) << 23);
  return x < -87.3f ? 0.0f : p * power;
}

}  // namespace shiftrt
