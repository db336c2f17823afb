// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/recurrent_sequences.h"

#include "runtime/check.h"

namespace shiftrt {

void RecurrentSequences::Begin(const LayerCall& call, const CallLayout& layout, int64_t state_floats,
                               int64_t row_floats) {
  sequences_.clear();
  order_.clear();
  int64_t parents = 0;
  for (size_t s = 0; s < layout.sequences.size(); ++s) {
    const CallLayout::Sequence& of = layout.sequences[s];
    const int64_t parent = call.batch.parents[s];
    CpuKv* const cache = call.continued.empty() ? nullptr : static_cast<CpuKv*>(call.continued[s].cache);
    sequences_.push_back({of.begin, of.count, cache != nullptr ? of.past : 0, parent, cache, nullptr, nullptr});
    parents += of.is_parent ? 1 : 0;
    if (of.generation == std::ssize(order_)) order_.emplace_back();
    order_[of.generation].push_back(s);
  }
  of_parents_.Reserve(parents * (state_floats + row_floats));
  float* at = of_parents_.data();
  for (size_t s = 0; s < sequences_.size(); ++s) {
    if (!layout.sequences[s].is_parent) continue;
    sequences_[s].state = at;
    sequences_[s].rows = at + state_floats;
    at += state_floats + row_floats;
  }
}

const std::vector<std::vector<DeltaSequence>>& RecurrentSequences::Of(int64_t slot) {
  generations_.clear();
  for (const std::vector<size_t>& members : order_) {
    std::vector<DeltaSequence>& generation = generations_.emplace_back();
    for (const size_t s : members) {
      const Sequence& of = sequences_[s];
      DeltaSequence sequence{of.begin, of.count};
      sequence.state_after = of.state;
      sequence.rows_after = of.rows;
      if (of.parent >= 0) {
        sequence.state_before = sequences_[of.parent].state;
        sequence.rows_before = sequences_[of.parent].rows;
      }
      if (of.cache != nullptr) {
        CpuKv::Slot& cached = of.cache->slots[slot];
        Check(of.past == 0 || cached.positions == of.past,
              "the state of a recurrent block is that of {} positions, and the call goes on from {}", cached.positions,
              of.past);
        sequence.state_after = cached.state.data();
        sequence.rows_after = cached.rows.data();
        sequence.state_before = of.past > 0 ? sequence.state_after : nullptr;
        sequence.rows_before = of.past > 0 ? sequence.rows_after : nullptr;
      }
      generation.push_back(sequence);
    }
  }
  return generations_;
}

void RecurrentSequences::Done(int64_t slot) {
  for (const Sequence& of : sequences_)
    if (of.cache != nullptr) of.cache->slots[slot].positions = of.past + of.count;
}

}  // namespace shiftrt
