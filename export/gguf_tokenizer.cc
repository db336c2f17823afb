// SPDX-License-Identifier: Apache-2.0
#include "export/gguf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/gguf.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/printable.h"
#include "tokenizers/chat_template.h"
#include "tokenizers/gguf.h"
#include "tokenizers/load.h"
#include "tokenizers/pretokenizer.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;  // tokenizer.ggml.token_type

constexpr const char* kProbes[] = {
    "The keeper's light, it's 1234567890 o'clock; they'll say I'M HERE!!! ...\n\n  \tif (x == 0) {\n    return y;\n}\n",
    "caf\xC3\xA9 Stra\xC3\x9F"
    "e na\xC3\xAFve \xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 "
    "\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C\xE3\x80\x82 \xF0\x9F\x98\x80 3.14159e-10 \r\n",
    "trailing   "};
// Texts in which a SentencePiece tokenizer may put no space where the readers of GGUF files put one, with the note
// about it.
struct SpaceProbe {
  const char* text;
  const char* note;
};
constexpr SpaceProbe kSpaceProbes[] = {
    {" leading",
     "A text that begins with a space has other tokens in the file: its readers put a further space before it, and the "
     "model's tokenizer does not (prepend_scheme of tokenizer.json), which GGUF cannot say."},
    {"<s>text<unk>text<|end|><0x41>",  // without spaces, which some tokens take
     "Text behind a special token has other tokens in the file: its readers put a space before it, and the model's "
     "tokenizer does not (legacy is false in tokenizer_config.json, or prepend_scheme of tokenizer.json is first), "
     "which "
     "GGUF cannot say."}};

struct Tokens {
  std::vector<std::string> pieces;  // "" where there is none yet
  std::vector<int32_t> types;
  int64_t rows = 0;                   // the embedding has
  std::vector<std::string> left_out;  // tokens without a row, with which llama.cpp would not load the file

  void Set(int64_t id, const std::string& piece, int32_t type) {
    if (id >= rows) {
      left_out.push_back(piece);
      return;
    }
    if (id >= std::ssize(pieces)) {
      pieces.resize(id + 1);
      types.resize(id + 1, kUnused);
    }
    pieces[id] = piece;
    types[id] = type;
  }
  void SetAdded(const std::vector<AddedToken>& added, std::vector<std::string>& notes) {
    for (const AddedToken& token : added) {
      if (token.id >= rows) std::erase(left_out, token.content);  // a piece of the vocabulary, too
      Set(token.id, token.content, token.special ? kControl : kUserDefined);
      if (token.lstrip || token.rstrip)
        notes.push_back(fmt::format("Token {} takes the spaces beside it, which GGUF cannot say.", token.content));
    }
  }
  // TokenizerSettings::named: pieces of the vocabulary that are special.
  void SetNamed(const std::vector<AddedToken>& named) {
    for (const AddedToken& token : named) {
      const auto at = std::find(pieces.begin(), pieces.end(), token.content) - pieces.begin();
      if (at < std::ssize(pieces) && types[at] == kNormal) types[at] = kControl;
    }
  }
  // Gives names to the remaining ids, none of which is a piece.
  void Fill(int64_t vocab) {
    if (std::ssize(pieces) < vocab) Set(vocab - 1, "", kUnused);
    for (size_t id = 0; id < pieces.size(); ++id)
      if (pieces[id].empty()) pieces[id] = fmt::format("[PAD{}]", id);
  }
};

// The steps of a pre_tokenizer in tokenizer.json: the patterns that split the text one after another, and whether
// digits are split off first. There is no pattern for any other steps.
struct WordSteps {
  std::vector<std::string> patterns;
  bool digits = false;
};
WordSteps ReadWordSteps(const Json& pre_tokenizer) {
  const Json steps =
      pre_tokenizer.value("type", "") == "Sequence" ? pre_tokenizer.at("pretokenizers") : Json::array({pre_tokenizer});
  WordSteps read;
  for (const Json& step : steps) {
    const std::string type = step.value("type", "");
    if (type == "Digits" && step.value("individual_digits", false) && read.patterns.empty()) {
      read.digits = true;
    } else if (type == "Split" && step.value("behavior", "") == "Isolated" && !step.value("invert", false) &&
               step.at("pattern").contains("Regex")) {
      read.patterns.push_back(step["pattern"]["Regex"].get<std::string>());
    } else if (type == "ByteLevel" && !step.value("add_prefix_space", true)) {
      if (!step.value("use_regex", true)) continue;
      if (!read.patterns.empty()) return {};
      read.patterns = {kGpt2Pattern};
    } else {
      return {};
    }
  }
  return read;
}

void AddBpe(const WordSteps& steps, bool whole_words, const std::vector<std::string>& merges, const std::string& where,
            GgufWriter& file) {
  const GgufPreTokenizer* const pre = FindGgufPreTokenizer(steps.patterns, steps.digits, whole_words);
  Check(pre != nullptr, "{}: the way in which this tokenizer splits text into words has no name in GGUF", where);
  file.AddText("tokenizer.ggml.model", "gpt2");
  file.AddText("tokenizer.ggml.pre", pre->name);
  file.AddTexts("tokenizer.ggml.merges", merges);
}

std::vector<AddedToken> AddedTokensOf(const Json& root, const TokenizerSettings& settings, const fs::path& path) {
  std::vector<AddedToken> added;
  for (const Json& token : root.value("added_tokens", Json::array()))
    added.push_back(ParseAddedToken(token, ParseTokenId(token.at("id"), path.string()), path.string()));
  return WithTokensOf(std::move(added), settings);
}

void ReadTokenizerFile(const fs::path& path, const TokenizerSettings& settings, Tokens& tokens, GgufWriter& file,
                       std::vector<std::string>& notes) {
  const Json root = ReadTokenizerJson(path);
  const Json& model = root.at("model");
  for (const auto& [piece, id] : model.at("vocab").items()) tokens.Set(id.get<int64_t>(), piece, kNormal);
  tokens.SetAdded(AddedTokensOf(root, settings, path), notes);
  tokens.SetNamed(settings.named);
  std::vector<std::string> merges;
  for (const Json& merge : model.at("merges"))
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
  AddBpe(ReadWordSteps(root.value("pre_tokenizer", Json::object())), model.value("ignore_merges", false), merges,
         path.string(), file);
}

void ReadVocabAndMerges(const TokenizerSettings& settings, Tokens& tokens, GgufWriter& file,
                        std::vector<std::string>& notes) {
  const std::string vocab = (settings.directory / "vocab.json").string();
  const Json pieces = ReadTokenizerJson(vocab);
  for (const auto& [piece, id] : pieces.items()) tokens.Set(id.get<int64_t>(), piece, kNormal);
  tokens.SetAdded(settings.added, notes);
  tokens.SetNamed(settings.named);
  std::vector<std::string> merges;
  const std::string text = ReadFile(settings.directory / "merges.txt");
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(std::move(line));
  }
  const bool qwen = settings.tokenizer_class.starts_with("Qwen2Tokenizer");
  AddBpe({.patterns = {qwen ? kQwen2Pattern : kGpt2Pattern}}, false, merges, vocab, file);
}

// A tokenizer.model as the readers of GGUF files use it.
struct ModelFile {
  TokenizerSettings settings;
  SentencePieceTable table;
  std::unique_ptr<Tokenizer> tokenizer;
};

// Reads the tokenizer.model of the model. GGUF can say whether a space is added before a text, and its readers add that
// space after special tokens too. The former is found from what the model's tokenizer does, because a tokenizer.json
// next to the file may have a setting of its own.
ModelFile ReadModelFile(const Model& model) {
  const fs::path path = model.directory / "tokenizer.model", json = model.directory / "tokenizer.json";
  const std::string bytes = ReadFile(path);
  Check(bytes.starts_with('\n'), "{}: tiktoken's ranks cannot be written to GGUF; give the model a tokenizer.json",
        path.string());
  ModelFile file = {ReadTokenizerSettings(model.directory), ReadSentencePieceTable(bytes, path.string()), nullptr};
  Check(file.table.bpe, "{}: a unigram model, which llama.cpp's tokenizer \"llama\" is not", path.string());
  if (Exists(json)) file.settings.added = AddedTokensOf(ReadTokenizerJson(json), file.settings, json);
  file.settings.legacy = true;
  const Tokenizer& own = model.RequireTokenizer();
  for (const bool adds_space : {file.table.dummy_prefix, !file.table.dummy_prefix}) {
    file.settings.add_prefix_space = adds_space;
    file.tokenizer = LoadSentencePiece(file.settings, bytes, path.string());
    if (file.tokenizer->Encode(kProbes[0]) == own.Encode(kProbes[0])) return file;
  }
  Fail("{}: the model's tokenizer gives other tokens for '{}' than this file, which is what GGUF holds", path.string(),
       kProbes[0]);
}

void AddModelFile(const Model& model, int64_t vocab, Tokens& tokens, GgufWriter& file,
                  std::vector<std::string>& notes) {
  ModelFile source = ReadModelFile(model);
  SentencePieceTable& table = source.table;
  for (size_t id = 0; id < table.pieces.size(); ++id)
    tokens.Set(static_cast<int64_t>(id), table.pieces[id], table.types[id]);
  tokens.SetAdded(source.settings.added, notes);
  table.scores.resize(std::max<size_t>(tokens.pieces.size(), vocab), -1000);  // as llama.cpp's converter does
  file.AddText("tokenizer.ggml.model", "llama");
  file.AddText("tokenizer.ggml.pre", "default");
  file.AddNumbers("tokenizer.ggml.scores", table.scores);
  file.AddFlag("tokenizer.ggml.add_space_prefix", *source.settings.add_prefix_space);
  file.AddFlag("tokenizer.ggml.remove_extra_whitespaces", table.trims_spaces);
  const auto unknown = std::find(table.types.begin(), table.types.end(), 2);
  if (unknown != table.types.end()) file.AddInteger("tokenizer.ggml.unknown_token_id", unknown - table.types.begin());
  for (const SpaceProbe& probe : kSpaceProbes)
    if (source.tokenizer->Encode(probe.text) != model.RequireTokenizer().Encode(probe.text))
      notes.emplace_back(probe.note);
}

// The tokens that end a reply of the model, as GGUF can hold them.
struct EndTokens {
  int32_t of_text = -1, of_turn = -1;  // those with a key; -1: none
  std::vector<int32_t> by_piece;       // end a reply without a key
  std::vector<int32_t> left_out;
};
EndTokens EndTokensOf(const Model& model, const std::vector<std::string>& pieces) {
  EndTokens ends;
  ends.of_text = model.RequireTokenizer().eos_token();
  for (const int32_t id : model.weights->config.eos_tokens) {
    if (id == ends.of_text || id >= std::ssize(pieces)) continue;
    if (EndsGgufReply(pieces[id])) {
      ends.by_piece.push_back(id);
    } else if (ends.of_turn < 0) {
      ends.of_turn = id;
    } else {
      ends.left_out.push_back(id);
    }
  }
  if (ends.of_turn < 0 && ends.by_piece.size() == 1) ends.of_turn = ends.by_piece.front();
  return ends;
}

void AddEndTokens(const Model& model, const std::vector<std::string>& pieces, GgufWriter& file,
                  std::vector<std::string>& notes) {
  const EndTokens ends = EndTokensOf(model, pieces);
  if (ends.of_text >= 0) file.AddInteger(kGgufEndOfText, ends.of_text);
  if (ends.of_turn >= 0) file.AddInteger(kGgufEndOfTurn, ends.of_turn);
  for (const int32_t id : ends.left_out)
    notes.push_back(
        fmt::format("Token {} ({}) ends a reply of the model, and not one of the file: GGUF has a key for "
                    "the end of a text and one for the end of a turn, which is token {} ({}).",
                    id, Printable(pieces[id]), ends.of_turn, Printable(pieces[ends.of_turn])));
}

// Throws Error unless the file `written` ends a reply with the tokens of the model that it can hold.
void VerifyEndTokens(const Model& model, const fs::path& written) {
  const GgufFile file(written);
  const std::vector<std::string_view> pieces = file.metadata().Texts("tokenizer.ggml.tokens");
  const EndTokens expected = EndTokensOf(model, {pieces.begin(), pieces.end()});
  const std::vector<int64_t> found = GgufEndTokens(file.metadata());
  std::vector<int32_t> ids = expected.by_piece;
  for (const int32_t id : {expected.of_text, expected.of_turn})
    if (id >= 0) ids.push_back(id);
  for (const int32_t id : ids)
    Check(std::find(found.begin(), found.end(), id) != found.end(),
          "{}: read back, token {} ({}) does not end a reply, which it does in the model", written.string(), id,
          Printable(pieces[id]));
}

// Copies the tokenizer's metadata from another file unchanged.
void CopyTokenizer(const GgufFile& from, GgufWriter& file) {
  for (const auto& [key, value] : from.metadata().values())
    if (key.starts_with("tokenizer.")) file.AddCopy(key, value);
}

// GGUF can say that texts begin with BOS, and nothing else.
bool BeginsWithBos(const Tokenizer& tokenizer) {
  return tokenizer.prefix().size() == 1 && tokenizer.prefix()[0] == tokenizer.bos_token();
}

}  // namespace

std::vector<std::string> AddGgufTokenizer(const Model& model, GgufWriter& file) {
  std::vector<std::string> notes;
  if (IsGguf(model.directory)) {
    CopyTokenizer(GgufFile(model.directory), file);
    return notes;
  }
  const int64_t vocab = model.weights->config.vocab;
  const TokenizerSettings settings = ReadTokenizerSettings(model.directory);
  Tokens tokens;
  tokens.rows = vocab;
  const fs::path json = model.directory / "tokenizer.json";
  // If a tokenizer.json has no byte-level alphabet, it was converted from a SentencePiece model, and only the file of
  // that model has the scores.
  const bool converted = Exists(json) && ReadTokenizerJson(json).at("model").value("byte_fallback", false);
  Check(
      !converted || Exists(model.directory / "tokenizer.model"),
      "{}: this tokenizer was made from a SentencePiece model, whose scores GGUF needs; put tokenizer.model next to it",
      json.string());
  if (Exists(json) && !converted) {
    ReadTokenizerFile(json, settings, tokens, file, notes);
  } else if (Exists(model.directory / "vocab.json") && Exists(model.directory / "merges.txt")) {
    ReadVocabAndMerges(settings, tokens, file, notes);
  } else {
    AddModelFile(model, vocab, tokens, file, notes);
  }
  if (!tokens.left_out.empty())
    notes.push_back(fmt::format("The model's embedding has {} rows and none for the tokens {}, which are left out.",
                                vocab, Printable(fmt::format("{}", fmt::join(tokens.left_out, ", ")))));
  tokens.Fill(vocab);
  file.AddTexts("tokenizer.ggml.tokens", tokens.pieces);
  file.AddIntegers("tokenizer.ggml.token_type", tokens.types);
  const Tokenizer& tokenizer = model.RequireTokenizer();
  if (tokenizer.bos_token() >= 0) file.AddInteger("tokenizer.ggml.bos_token_id", tokenizer.bos_token());
  AddEndTokens(model, tokens.pieces, file, notes);
  file.AddFlag("tokenizer.ggml.add_bos_token", BeginsWithBos(tokenizer));
  if (tokenizer.adds_bos() && !BeginsWithBos(tokenizer))
    notes.push_back(fmt::format("Texts begin with {}, which GGUF cannot say: put these tokens before a prompt.",
                                Printable(tokenizer.Decode(tokenizer.prefix()))));
  if (const auto found = FindChatTemplate(model.directory); found && !found->text.empty())
    file.AddText("tokenizer.chat_template", found->text);
  if (const std::vector<std::string> further = FurtherTemplates(model.directory); !further.empty())
    notes.push_back(fmt::format("The file has the chat template that is used by default; those called {} are left out.",
                                Printable(fmt::format("{}", fmt::join(further, ", ")))));
  return notes;
}

void VerifyGgufTokenizer(const Model& model, const fs::path& written) {
  try {
    model.RequireTokenizer();
  } catch (const Error&) {
    if (IsGguf(model.directory)) return;  // the metadata were copied as they are, and cannot be read
    throw;
  }
  const Tokenizer& expected = model.RequireTokenizer();
  const auto found = LoadTokenizer(written);
  for (int32_t id = 0; id < expected.vocab_size(); ++id) {
    std::string piece;
    try {
      piece = expected.Piece(id);
    } catch (const Error&) {  // an id without a piece
      continue;
    }
    Check(found->Piece(id) == piece, "{}: read back, token {} is '{}', expected '{}'", written.string(), id,
          found->Piece(id), piece);
  }
  Check(found->bos_token() == expected.bos_token() && found->adds_bos() == BeginsWithBos(expected),
        "{}: read back, the tokenizer begins a text in another way", written.string());
  VerifyEndTokens(model, written);
  const auto check = [&](const Tokenizer& tokenizer, const char* text) {
    Check(found->Encode(text) == tokenizer.Encode(text), "{}: read back, the tokenizer gives other tokens for '{}'",
          written.string(), text);
  };
  for (const char* text : kProbes) check(expected, text);
  const bool model_file =
      !IsGguf(model.directory) && GgufFile(written).metadata().Text("tokenizer.ggml.model") == "llama";
  const std::unique_ptr<Tokenizer> as_read = model_file ? ReadModelFile(model).tokenizer : nullptr;
  for (const SpaceProbe& probe : kSpaceProbes) check(model_file ? *as_read : expected, probe.text);
}

}  // namespace shiftrt
