// SPDX-License-Identifier: Apache-2.0
// Reads numbers out of replies as the reference's filters do, and compares them as its exact_match does.
#pragma once

#include <string>
#include <string_view>

namespace shiftrt {

// The text that stands for a number where a reply has none.
inline constexpr const char* kNoNumber = "[invalid]";

// The number after the first "#### ", as the filter strict-match has it: the first match of "#### (\-?[0-9\.\,]+)".
std::string NumberAfterHashes(std::string_view reply);
// The number in the first match of "The answer is (\-?[0-9\.\,]+).", as the filter strict-match of gsm8k_cot has it.
// The last "." is any character but a line end, so that a number at the end of the reply loses its last character.
std::string NumberAfterTheAnswerIs(std::string_view reply);
// The last number, as the filter flexible-extract has it: the last match of "(-?[$0-9.,]{2,})|(-?[0-9]+)".
std::string LastNumber(std::string_view reply);

// Says whether both are the same without commas, dollar signs, all up to the last "#### ", a full stop at the end, and
// the case of ASCII letters, which the reference ignores for GSM8K.
bool SameNumber(std::string_view one, std::string_view other);

}  // namespace shiftrt
