// SPDX-License-Identifier: Apache-2.0
// The extension module shiftrt._native: its exceptions, and what the other files bind.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "python/native/common.h"

namespace shiftrt::python {

namespace {

// Raises the exception of shiftrt/errors.py with this name and these attributes.
void Raise(const char* name, const char* message, const std::map<std::string, nb::object>& attributes = {}) {
  const nb::object type = nb::module_::import_("shiftrt.errors").attr(name);
  // A name of a file in a message need not be UTF-8.
  const nb::object text =
      nb::steal(PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "replace"));
  const nb::object error = type(text);
  for (const auto& [attribute, value] : attributes) nb::setattr(error, attribute.c_str(), value);
  PyErr_SetObject(type.ptr(), error.ptr());
}

void Translated(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const UsageError& error) {
    Raise("UsageError", error.what(), {{"field", nb::cast(error.field())}, {"reason", nb::cast(error.reason())}});
  } catch (const OutOfMemory& error) {
    Raise("OutOfMemory", error.what(), {{"free_bytes", nb::int_(error.free_bytes)}});
  } catch (const Interrupted&) {
    PyErr_SetNone(PyExc_KeyboardInterrupt);
  } catch (const Error& error) {
    Raise("Error", error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    Raise("Error", error.what());
  }
}

void Translate(const std::exception_ptr& thrown, void*) {
  try {
    Translated(thrown);
  } catch (nb::python_error& error) {
    error.restore();  // such as a Ctrl-C meanwhile
  }
}

void AddResources(nb::module_& module) {
  nb::class_<Resources>(module, "Resources", "What computations may use of the machine.")
      .def(
          "__init__",
          [](Resources* self, int threads, int64_t memory, std::vector<int> gpus, const std::string& products) {
            new (self) Resources(Prepare({.threads = threads,
                                          .calibration_memory = memory,
                                          .gpus = std::move(gpus),
                                          .products = ParseProducts(products)}));
          },
          "threads"_a, "memory"_a, "gpus"_a, "products"_a)
      .def_prop_ro("gpus", [](const Resources& self) { return self.gpus; });
}

}  // namespace

}  // namespace shiftrt::python

NB_MODULE(_native, module) {
  namespace python = shiftrt::python;
  module.doc() = "The public C++ face of shiftrt; use the package shiftrt, which is made of it.";
  nanobind::register_exception_translator(python::Translate);
  python::AddResources(module);
  python::AddModel(module);
  python::AddRepair(module);
  python::AddEvaluation(module);
  python::AddTraining(module);
  python::AddRunner(module);
  module.def("version", &shiftrt::Version, "The version of the library.");
}
