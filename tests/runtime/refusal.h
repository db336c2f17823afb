// SPDX-License-Identifier: Apache-2.0
// Checks of error messages.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "runtime/check.h"

namespace shiftrt {

// The message of the Error that `call` throws, "" if it throws none.
template <typename Call>
std::string Refusal(Call&& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// Expects that `call` throws an Error whose message starts with `file` and contains `word`.
template <typename Call>
void ExpectRefusal(Call&& call, const std::string& file, const std::string& word) {
  const std::string what = Refusal(call);
  EXPECT_TRUE(what.starts_with(file + ":")) << "expected " << file << ", found: " << what;
  EXPECT_NE(what.find(word), std::string::npos) << "expected " << word << ", found: " << what;
}

}  // namespace shiftrt
