// SPDX-License-Identifier: Apache-2.0
// The probes of the pass that all criteria share.
#pragma once

#include <memory>
#include <typeindex>
#include <utility>
#include <vector>

#include "shift/sums/pass.h"

namespace shiftrt {

struct CriterionInput;

// There is one probe per kind, so what several criteria need is measured once. A kind is a class derived from Probe
// with a constructor (const CriterionInput&, Progress&). Criteria tell the probe before the pass what they need, and
// read it afterwards.
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
