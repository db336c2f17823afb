// SPDX-License-Identifier: Apache-2.0
// What the command line calls the library's fields.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/check.h"
#include "runtime/field_rows.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shiftrt {

// The error for whoever typed `command`'s options: its field under the name of the option that sets it.
std::string Message(const UsageError& error, const CLI::App& command);

// Adds the option of a setting, which checks the bounds of a number; the words of the setting go to `value`. A text
// that is there is shown as the default.
CLI::Option* AddField(FieldKind kind, const std::string& flag, const std::string& help, std::string& value,
                      CLI::App& app, const std::optional<Bounds>& bounds = {});

// The option that sets this field of the library, where a command has it.
std::string FlagNamed(std::string_view field);

// The option of `command` that sets this field of the library; null if it has none.
CLI::Option* OptionOf(std::string_view field, CLI::App& command);

}  // namespace shiftrt
