// SPDX-License-Identifier: Apache-2.0
#include "tools/report_output.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "shiftrt/version.h"
#include "tools/options.h"

namespace shiftrt {

namespace {

// The command of this process, once it is parsed.
std::string& CommandLine() {
  static std::string line;
  return line;
}

// A word as a shell reads it.
std::string Quoted(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=+@%~";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// The options that the user has given, before a named recipe adds its own.
std::string CommandOf(const CLI::App& app) {
  std::string line = "shiftrt " + app.get_name();
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    line += " " + option->get_name();
    if (option->get_items_expected_max() == 0) continue;  // a flag
    for (const std::string& value : option->results()) line += " " + Quoted(value);
  }
  return line;
}

std::string WhyNotReplaced(const std::string& directory) {
  const std::filesystem::path index = std::filesystem::path(directory) / "index.html";
  if (std::error_code none; !std::filesystem::is_regular_file(index, none) || IsPage(index)) return "";
  return fmt::format("{}: this file is no report of shiftrt and would be replaced; name another directory",
                     index.string());
}

}  // namespace

void AddReport(CLI::App& app, std::string& directory, const std::string& help) {
  app.parse_complete_callback([&app] { CommandLine() = CommandOf(app); });
  app.add_option("--report", directory, help)->check(DirectoryOutput())->check(CLI::Validator(WhyNotReplaced, ""));
}

void WriteReport(Page page, const std::string& directory) {
  page.made_by = fmt::format("shiftrt {}: {}", Version(), CommandLine());
  WritePage(page, directory);
  fmt::print("report: {}/index.html\n", directory);
}

}  // namespace shiftrt
