// SPDX-License-Identifier: Apache-2.0
// The filters, tests, functions and methods that templates may use. Each behaves as in Jinja 3.1 and Python.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/jinja/run.h"

namespace shiftrt::jinja {

// Names of parameters; the first `required` must be given. A name "" stands for one that is given by position only.
struct Signature {
  std::vector<std::string_view> parameters;
  size_t required = 0;

  // Describes the error in a call; "" if the call fits.
  std::string Mismatch(size_t positional, std::span<const std::string> keywords) const;
  // For each parameter, the index of its argument, positional ones first; -1 for one that is not given. The call must
  // fit.
  std::vector<int> Places(size_t positional, std::span<const std::string> keywords) const;
};

// The arguments in the order of the signature. An argument that was not given has no value.
using Arguments = std::span<const std::optional<Value>>;

struct Builtin {
  std::string_view name;
  Signature signature;
  // `subject` is the value that is filtered or tested, or whose method is called; undefined for a function.
  Value (*call)(Run& run, const Value& subject, Arguments arguments);
};

// Null for an unknown name.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);  // returns a bool
const Builtin* FindFunction(std::string_view name);
const Builtin* FindTextMethod(std::string_view name);
const Builtin* FindMappingMethod(std::string_view name);

// True for namespace(), which takes any keywords.
bool IsNamespaceFunction(const Builtin& function);

// Names of the arguments of map, select and their like that name a filter or a test, and where: the parser checks them.
struct NamedCallable {
  size_t argument;
  const Builtin* (*find)(std::string_view name);
};
std::optional<NamedCallable> NamedArgument(const Builtin& filter);

}  // namespace shiftrt::jinja
