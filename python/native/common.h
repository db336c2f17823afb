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
#include <string>
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

// The words of a value for Set(). Throws nb::cast_error for a value of another type.
inline std::string WordsOf(nb::handle value) {
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value) ? "true" : "false";
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (nb::hasattr(value, "__fspath__")) return nb::cast<std::string>(value.attr("__fspath__")());
  if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
    std::string words;
    for (const nb::handle part : nb::borrow<nb::sequence>(value)) words += (words.empty() ? "" : ",") + WordsOf(part);
    return words;
  }
  if (nb::hasattr(value, "__index__") || nb::hasattr(value, "__float__")) return nb::cast<std::string>(nb::str(value));
  throw nb::cast_error();
}

// Sets the fields that a dict names. Throws UsageError with the name of a field whose value has another type.
template <typename Settings>
void SetAll(const nb::dict& values, Settings& settings) {
  for (const auto& [key, value] : values) {
    const auto name = nb::cast<std::string>(key);
    try {
      Set(name, WordsOf(value), settings);
    } catch (const nb::cast_error&) {
      throw UsageError(name,
                       "a " + nb::cast<std::string>(nb::str(value.type().attr("__name__"))) + " cannot be its value");
    }
  }
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
