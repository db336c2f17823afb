// SPDX-License-Identifier: Apache-2.0
// The slots of a call, pairs of a token and one of its experts, in the order of the experts (kernels/experts.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shiftrt {

struct ExpertSlots {
  std::vector<int64_t> offsets;   // (experts + 1): where the slots of each expert begin
  std::vector<int32_t> token_of;  // (slots)
  std::vector<int32_t> slots_of;  // (tokens, active)
};

// From the experts of each token, (tokens, active).
inline ExpertSlots SlotsOf(std::span<const int32_t> chosen, int64_t experts, int64_t active) {
  ExpertSlots slots{std::vector<int64_t>(experts + 1, 0), std::vector<int32_t>(chosen.size()),
                    std::vector<int32_t>(chosen.size())};
  for (const int32_t expert : chosen) ++slots.offsets[expert + 1];
  for (int64_t e = 0; e < experts; ++e) slots.offsets[e + 1] += slots.offsets[e];
  std::vector<int64_t> next = slots.offsets;
  for (int64_t i = 0; i < std::ssize(chosen); ++i) {
    const int64_t slot = next[chosen[i]]++;
    slots.token_of[slot] = static_cast<int32_t>(i / active);
    slots.slots_of[i] = static_cast<int32_t>(slot);
  }
  return slots;
}

}  // namespace shiftrt
