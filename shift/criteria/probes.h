// SPDX-License-Identifier: Apache-2.0
// The probes of the one pass that all criteria share.
#pragma once

#include <memory>
#include <typeindex>
#include <utility>
#include <vector>

#include "shift/sums/pass.h"

namespace shiftrt {

struct CriterionInput;

// One probe per kind, whichever criteria ask for it: what two of them want is measured once. A kind is a class derived
// from Probe that is made from (const CriterionInput&, Progress&); criteria tell it what they want of it before the
// pass, and read it afterwards.
class ProbeSet {
 public:
  ProbeSet(const CriterionInput& input, Progress& progress) : input_(input), progress_(progress) {}

  template <typename Kind>
  Kind& Get() {
    for (const auto& [kind, probe] : probes_)
      if (kind == typeid(Kind)) return static_cast<Kind&>(*probe);
    auto made = std::make_unique<Kind>(input_, progress_);
    Kind& probe = *made;
    probes_.emplace_back(typeid(Kind), std::move(made));
    return probe;
  }
  bool empty() const { return probes_.empty(); }
  void AddTo(Pass& pass) {
    for (const auto& [kind, probe] : probes_) pass.Add(*probe);
  }

 private:
  const CriterionInput& input_;
  Progress& progress_;
  std::vector<std::pair<std::type_index, std::unique_ptr<Probe>>> probes_;
};

}  // namespace shiftrt
