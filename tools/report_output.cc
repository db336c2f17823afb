// SPDX-License-Identifier: Apache-2.0
#include "tools/report_output.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "tools/options.h"

namespace shiftrt {

namespace {

std::string WhyNotReplaced(const std::string& directory) {
  const std::filesystem::path index = std::filesystem::path(directory) / "index.html";
  if (std::error_code none; !std::filesystem::is_regular_file(index, none) || IsPage(index)) return "";
  return fmt::format("{}: this file is no report of shiftrt and would be replaced; name another directory",
                     index.string());
}

}  // namespace

void AddReport(CLI::App& app, std::string& directory, const std::string& help) {
  app.add_option("--report", directory, help)->check(DirectoryOutput())->check(CLI::Validator(WhyNotReplaced, ""));
}

void WriteReport(const Page& page, const std::string& directory) {
  WritePage(page, directory);
  fmt::print("report: {}/index.html\n", directory);
}

}  // namespace shiftrt
