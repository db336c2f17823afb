// SPDX-License-Identifier: Apache-2.0
// A shared library that is opened when it is needed instead of being linked, so a program that never needs it starts
// without it, on machines that lack it too. It stays open until the process ends: libraries keep state per process,
// take long to load, and may still be needed by handles that are destroyed at exit.
#pragma once

#include <dlfcn.h>

#include <string>
#include <type_traits>
#include <vector>

#include "runtime/check.h"

namespace shiftrt {

class SharedLibrary {
 public:
  // Opens the first of `names` that is installed. Throws Error "<need> <names>: <reason of the system>" if none is.
  SharedLibrary(const std::string& need, const std::vector<std::string>& names) {
    std::string reason;
    for (const std::string& name : names) {
      name_ = name;
      handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) return;
      reason = dlerror();
    }
    Fail("{} {}: {}", need, fmt::join(names, " or "), reason);
  }
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  // The one of the names that was opened.
  const std::string& name() const { return name_; }

  // Converts to a pointer to any type of function.
  struct Symbol {
    void* address;
    template <typename Function>
    requires(std::is_function_v<Function>) operator Function*() const {  // NOLINT(google-explicit-constructor)
      return reinterpret_cast<Function*>(address);
    }
  };
  // As in: decltype(&EVP_sha256) sha256 = library.Find("EVP_sha256"). Throws Error if the library lacks it.
  Symbol Find(const char* name) const { return {FindObject(name)}; }
  // The address of a variable. Throws Error if the library lacks it.
  void* FindObject(const char* name) const {
    void* const address = dlsym(handle_, name);
    Check(address != nullptr, "{} lacks {}: {}", name_, name, dlerror());
    return address;
  }

 private:
  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace shiftrt
