// SPDX-License-Identifier: Apache-2.0
// The steps before the tokenizer model: normalization of the text, and splitting it into words.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

struct pcre2_real_code_8;

namespace shiftrt {

// The split patterns of the model families, as in their reference tokenizers.
extern const char* const kGpt2Pattern;
extern const char* const kQwen2Pattern;
extern const char* const kQwen35Pattern;
extern const char* const kLlama3Pattern;
extern const char* const kTekkenPattern;  // Mistral Nemo and later
extern const char* const kO200kPattern;   // GPT-4o and gpt-oss
// Punctuation in the sense of the library `tokenizers`: Unicode's and all of ASCII that is no letter, digit or space.
extern const char* const kPunctuationPattern;

using PieceSink = std::function<void(std::string_view)>;

// A pattern in the Oniguruma dialect of tokenizer.json, run by PCRE2. A construct that the two interpret differently is
// translated or refused, never run with the wrong meaning.
class SplitPattern {
 public:
  // Throws Error, naming `where`, if the pattern is not supported, does not compile or can match the empty text.
  SplitPattern(const std::string& pattern, const std::string& where);

  // Splits `text` into matches and the text between them, and calls on_piece(piece, is_match) for each in order. Throws
  // Error at PCRE2's limits.
  void Split(std::string_view text, const std::function<void(std::string_view, bool)>& on_piece) const;

 private:
  std::shared_ptr<pcre2_real_code_8> code_;
  std::string where_;
};

class Normalizer {
 public:
  enum class Form { kNfc, kNfd, kNfkc, kNfkd };
  void AddForm(Form form) { steps_.push_back(form); }
  void AddPrepend(std::string prefix) { steps_.push_back(Prepend{std::move(prefix)}); }
  void AddReplace(std::string from, std::string to) { steps_.push_back(Replace{std::move(from), std::move(to)}); }
  void AddReplace(SplitPattern from, std::string to) {
    steps_.push_back(ReplaceMatches{std::move(from), std::move(to)});
  }
  void AddLowercase() { steps_.push_back(Lowercase{}); }
  void AddStrip(bool left, bool right) { steps_.push_back(Strip{left, right}); }
  std::string Apply(std::string_view text) const;

 private:
  struct Prepend {
    std::string prefix;
  };
  struct Replace {
    std::string from, to;
  };
  struct ReplaceMatches {
    SplitPattern from;
    std::string to;
  };
  struct Lowercase {};
  struct Strip {
    bool left, right;
  };

  static std::string Run(const Form& form, const std::string& text, size_t size);
  static std::string Run(const Prepend& step, const std::string& text, size_t size);
  static std::string Run(const Replace& step, const std::string& text, size_t size);
  static std::string Run(const ReplaceMatches& step, const std::string& text, size_t size);
  static std::string Run(const Lowercase& step, const std::string& text, size_t size);
  static std::string Run(const Strip& step, const std::string& text, size_t size);

  std::vector<std::variant<Form, Prepend, Replace, ReplaceMatches, Lowercase, Strip>> steps_;
};

class PreTokenizer {
 public:
  void AddSplit(SplitPattern pattern, bool keep_matches, bool keep_rest) {
    steps_.push_back(SplitStep{std::move(pattern), keep_matches, keep_rest});
  }
  // A split that keeps all of the text. kPrevious and kNext: each match belongs to the piece before or after it; as in
  // the library `tokenizers`, of several adjacent matches only the one next to that piece joins it, and with `invert`
  // the text between the matches joins the matches. kAlike: adjacent matches are one piece.
  enum class Joining { kPrevious, kNext, kAlike };
  void AddMergingSplit(SplitPattern pattern, Joining joining, bool invert) {
    steps_.push_back(MergingSplit{std::move(pattern), joining, invert});
  }
  // Writes each byte as its character of the byte-level alphabet, for the steps that follow.
  void AddByteAlphabet() { steps_.push_back(ByteAlphabet{}); }
  void AddPrefixSpace() { steps_.push_back(PrefixSpace{}); }

  enum class Prepend { kAlways, kFirst, kNever };
  void AddMetaspace(std::string replacement, Prepend prepend, bool split) {
    steps_.push_back(Metaspace{std::move(replacement), prepend, split});
  }

  // `at_start`: whether `text` is the beginning of the whole input.
  void Apply(std::string_view text, bool at_start, const PieceSink& sink) const { Run(0, text, at_start, sink); }

 private:
  struct SplitStep {
    SplitPattern pattern;
    bool keep_matches, keep_rest;
  };
  struct MergingSplit {
    SplitPattern pattern;
    Joining joining;
    bool invert;
  };
  struct ByteAlphabet {};
  struct PrefixSpace {};
  struct Metaspace {
    std::string replacement;
    Prepend prepend;
    bool split;
  };

  void Run(size_t step, std::string_view text, bool at_start, const PieceSink& sink) const;
  void RunMergingSplit(const MergingSplit& split, std::string_view text, const PieceSink& next) const;
  void RunMetaspace(const Metaspace& metaspace, std::string_view text, bool at_start,
                    const std::function<void(std::string_view, bool)>& next) const;

  std::vector<std::variant<SplitStep, MergingSplit, PrefixSpace, ByteAlphabet, Metaspace>> steps_;
};

}  // namespace shiftrt
