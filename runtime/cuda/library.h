// SPDX-License-Identifier: Apache-2.0
// A shared library of the CUDA toolkit. It is opened when it is needed instead of being linked, so a program that
// never uses a GPU does not load it. It stays open until the process ends: the toolkit's libraries keep state per
// process, take long to load, and may still be needed by handles that are destroyed at exit.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

#include "runtime/check.h"

namespace shiftrt::gpu {

class SharedLibrary {
 public:
  // Throws Error naming the library and its purpose if it is not installed.
  SharedLibrary(const char* what_for, std::string name) : name_(std::move(name)) {
    handle_ = dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL);
    Check(handle_ != nullptr, "the GPU's {} need {}: {}", what_for, name_, dlerror());
  }
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  template <typename Function>
  void Find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    Check(function != nullptr, "{} lacks {}: {}", name_, name, dlerror());
  }

 private:
  std::string name_;
  void* handle_;
};

}  // namespace shiftrt::gpu
