// SPDX-License-Identifier: Apache-2.0
// Functions that the files of the extension module shiftrt._native share. The module is the public interface for the
// Python package next to it, which adds defaults, tables and what other packages take part in. Every call that computes
// releases the GIL. Python's handlers of signals run whenever the library reports progress, so Ctrl-C ends a
// computation there.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <shiftrt/shiftrt.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace shiftrt::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline std::span<const int32_t> View(const Tokens& tokens) { return {tokens.data(), tokens.size()}; }

// Calls a function without the GIL.
template <typename Call>
auto Released(Call&& call) {
  const nb::gil_scoped_release release;
  return call();
}

// Runs Python's handlers of the signals that have come. Their exception, such as KeyboardInterrupt, ends the caller's
// computation. Needs the GIL.
inline void HandleSignals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Reports progress to a Python object with the methods begin(phase, total), advance(count) and end(), or to None.
class Reports : public Progress {
 public:
  explicit Reports(nb::object listener) : listener_(std::move(listener)) {}

  void Begin(std::string_view phase, int64_t total) override {
    const nb::gil_scoped_acquire acquire;
    HandleSignals();
    if (!listener_.is_none()) listener_.attr("begin")(nb::str(phase.data(), phase.size()), total);
  }
  void Advance(int64_t count) override {
    const nb::gil_scoped_acquire acquire;
    HandleSignals();
    if (!listener_.is_none()) listener_.attr("advance")(count);
  }
  // A listener may have the method within(what, share), too.
  void Within(std::string_view what, double share) override {
    const nb::gil_scoped_acquire acquire;
    HandleSignals();
    if (nb::hasattr(listener_, "within")) listener_.attr("within")(nb::str(what.data(), what.size()), share);
  }
  void End() override {
    const nb::gil_scoped_acquire acquire;
    if (!listener_.is_none()) listener_.attr("end")();
  }

 private:
  nb::object listener_;
};

// Each adds the bindings of its file to the module.
void AddModel(nb::module_& module);
void AddRepair(nb::module_& module);
void AddEvaluation(nb::module_& module);
void AddTraining(nb::module_& module);
void AddRunner(nb::module_& module);

}  // namespace shiftrt::python
