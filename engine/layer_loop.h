// SPDX-License-Identifier: Apache-2.0
// The one layer loop: prefill, decode, scoring, calibration and training, on every device.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/backend.h"

namespace shiftrt {

class TapSet {
 public:
  TapSet() = default;
  explicit TapSet(std::vector<Tap> taps) : taps_(std::move(taps)) {}
  bool empty() const { return taps_.empty(); }
  // Throws Error for a tap on a layer that `stages` do not run, or, of a layer that they do run, on a half that they
  // leave out. `everything`: whether the stages are a whole plan, so that a tap on any other layer is wrong too.
  void Check(std::span<const Stage> stages, int64_t layers, bool everything) const;
  bool Has(int64_t layer, TapPoint point) const;
  bool HasOn(int64_t layer) const;
  bool HasFrom(int64_t layer) const;  // on this layer or a later one
  // Returns true if the layer is tapped anywhere after `point`, in the order of the enumeration.
  bool HasAfter(int64_t layer, TapPoint point) const;
  void Fire(int64_t layer, TapPoint point, const Rows& rows, const Batch& batch) const;

 private:
  std::vector<Tap> taps_;
};

// Runs the call's stages through the bodies `h`, which have been prepared for it, and the sinks of `taps` on the way.
void RunLayers(Layers& h, const TapSet& taps, const LayerCall& call);
// Runs the call's stages on `backend`, and the sinks of `taps` on the way. Returns Backend::Run's.
Rows RunLayers(Backend& backend, const TapSet& taps, const LayerCall& call);

}  // namespace shiftrt
