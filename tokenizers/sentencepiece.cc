// SPDX-License-Identifier: Apache-2.0
// SentencePiece models. libsentencepiece does the encoding, but it does not check its file completely. The file is
// therefore parsed and checked here first, and only a checked file is passed on.
#include <sentencepiece_processor.h>

#include <cstring>
#include <optional>

#include "runtime/check.h"
#include "tokenizers/load.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

namespace {

constexpr size_t kLongestPiece = 1024;  // bytes; the library recurses once per byte
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// normalizer_spec { add_dummy_prefix: `adds` }: appended to a message, it overrides an earlier value.
std::string DummyPrefix(bool adds) { return {'\x1A', '\x02', '\x18', adds ? '\x01' : '\x00'}; }

enum PieceType : uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// Iterates over the fields of a protocol buffer message.
class WireReader {
 public:
  WireReader(std::string_view message, const std::string& where) : rest_(message), where_(where) {}

  bool Next() {
    if (rest_.empty()) return false;
    const uint64_t tag = Varint();
    field_ = tag >> 3;
    switch (tag & 7) {
      case 0: number_ = Varint(); break;
      case 1: bytes_ = Take(8); break;
      case 2: bytes_ = Take(Varint()); break;
      case 5: bytes_ = Take(4); break;
      default: Fail("{}: not a SentencePiece model: wire type {}", where_, tag & 7);
    }
    is_bytes_ = (tag & 7) == 2;
    is_number_ = (tag & 7) == 0;
    is_single_ = (tag & 7) == 5;
    return true;
  }

  bool IsBytes(uint64_t field) const { return is_bytes_ && field_ == field; }
  bool IsNumber(uint64_t field) const { return is_number_ && field_ == field; }
  bool IsSingle(uint64_t field) const { return is_single_ && field_ == field; }
  std::string_view bytes() const { return bytes_; }
  uint64_t number() const { return number_; }
  float single() const {
    float value = 0;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    return value;
  }

 private:
  std::string_view Take(uint64_t count) {
    Check(count <= rest_.size(), "{}: the SentencePiece model is truncated: {} bytes expected, {} left", where_, count,
          rest_.size());
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(Take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    Fail("{}: not a SentencePiece model: a number of more than 64 bits", where_);
  }

  std::string_view rest_, bytes_;
  const std::string& where_;
  uint64_t field_ = 0, number_ = 0;
  bool is_bytes_ = false, is_number_ = false, is_single_ = false;
};

struct SentencePieceFile {
  Vocabulary vocabulary;
  // The pieces that are split off a text before the library sees it, as in transformers and llama.cpp: control and
  // unknown pieces, and user-defined ones, after which text begins anew. User-defined pieces with spaces are left to
  // the library, which finds them by their marks.
  std::vector<AddedToken> split;
  SentencePieceTable table;
};

void ReadPiece(std::string_view message, SentencePieceFile& file, const std::string& where) {
  std::string piece;
  uint64_t type = kNormal;
  float score = 0;
  for (WireReader reader(message, where); reader.Next();) {
    if (reader.IsBytes(1)) piece = reader.bytes();
    if (reader.IsSingle(2)) score = reader.single();
    if (reader.IsNumber(3)) type = reader.number();
  }
  const int32_t id = file.vocabulary.size();
  Check(type >= kNormal && type <= kByte, "{}: piece {} is of the unknown type {}", where, id, type);
  Check(piece.size() <= kLongestPiece, "{}: piece {} has {} bytes; at most {} are allowed", where, id, piece.size(),
        kLongestPiece);
  Check(piece.find('\0') == std::string::npos, "{}: piece {} holds a zero byte", where, id);
  Check(type != kByte || (ParseBytePiece(piece) >= 0 && piece == BytePiece(ParseBytePiece(piece))),
        "{}: piece {} says it is a byte but is '{}', not '<0xNN>'", where, id, piece);
  file.vocabulary.Add(piece, id, where);
  file.table.pieces.push_back(piece);
  file.table.scores.push_back(score);
  file.table.types.push_back(static_cast<int32_t>(type));
  const bool special = type == kControl || type == kUnknown;
  if (special || (type == kUserDefined && piece.find(kSpaceMark) == std::string::npos))
    file.split.push_back({.content = piece, .id = id, .special = special});
}

SentencePieceFile ReadSentencePieceFile(std::string_view bytes, const std::string& where) {
  SentencePieceFile file;
  for (WireReader reader(bytes, where); reader.Next();) {
    if (reader.IsBytes(1)) ReadPiece(reader.bytes(), file, where);
    if (reader.IsBytes(2)) {
      for (WireReader trainer(reader.bytes(), where); trainer.Next();) {
        if (trainer.IsNumber(3)) file.table.bpe = trainer.number() == 2;
        Check(!trainer.IsNumber(24) || trainer.number() == 0, "{}: treat_whitespace_as_suffix is not supported", where);
      }
    }
    if (!reader.IsBytes(3)) continue;
    for (WireReader spec(reader.bytes(), where); spec.Next();) {
      // The library walks the compiled rules without checking them; no Llama-family model has any.
      Check(!spec.IsBytes(2) || spec.bytes().empty(), "{}: normalization rules are not supported", where);
      Check(!spec.IsNumber(5) || spec.number() != 0, "{}: escape_whitespaces = false is not supported", where);
      if (spec.IsNumber(3)) file.table.dummy_prefix = spec.number() != 0;
      if (spec.IsNumber(4)) file.table.trims_spaces = spec.number() != 0;
    }
  }
  return file;
}

void LoadProcessor(sentencepiece::SentencePieceProcessor& processor, const std::string& bytes, int32_t pieces,
                   const std::string& where) {
  try {
    const auto status = processor.LoadFromSerializedProto(bytes);
    Check(status.ok(), "{}: not a SentencePiece model: {}", where, status.ToString());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    Fail("{}: not a SentencePiece model: {}", where, error.what());
  }
  Check(processor.GetPieceSize() == pieces, "{}: {} pieces counted, the library finds {}", where, pieces,
        processor.GetPieceSize());
}

class SentencePieceTokenizer final : public VocabularyTokenizer {
 public:
  SentencePieceTokenizer(const TokenizerSettings& settings, const std::string& bytes, const std::string& where)
      : where_(where) {
    SentencePieceFile file = ReadSentencePieceFile(bytes, where);
    const int32_t pieces = file.vocabulary.size();
    // As in transformers, the setting next to the model takes precedence over the one in it.
    const bool prefix = settings.add_prefix_space.value_or(file.table.dummy_prefix);
    LoadProcessor(start_, bytes + DummyPrefix(prefix), pieces, where);
    // Without "legacy", a space is added only at the start of the whole text.
    LoadProcessor(middle_, bytes + DummyPrefix(prefix && settings.legacy), pieces, where);
    if (settings.one_prefix_space) LoadProcessor(spaced_.emplace(), bytes + DummyPrefix(false), pieces, where);
    vocabulary_ = std::move(file.vocabulary);
    decoder_.byte_fallback = true;
    decoder_.replacements = {{std::string(kSpaceMark), " "}};
    decoder_.strip_spaces = prefix ? 1 : 0;
    AddTokens(file.split, where);
    AddTokens(settings.added, settings.directory.string());
    for (const AddedToken& token : file.split) raw_.Add(token, token.content);
    for (const AddedToken& token : settings.added) raw_.Add(token, token.content);
    SetSpecials(settings, start_.bos_id(), start_.eos_id(), start_.bos_id() >= 0);
  }

  std::vector<int32_t> Encode(std::string_view text) const override {
    CheckText(text);
    std::vector<int32_t> ids;
    for (const auto& segment : raw_.Split(text)) {
      if (segment.token >= 0) {
        ids.push_back(segment.token);
        continue;
      }
      std::vector<int> found;
      const bool spaced = segment.text.starts_with(' ') || segment.text.starts_with(kSpaceMark);
      const auto& processor = spaced_ && spaced ? *spaced_ : segment.text.data() == text.data() ? start_ : middle_;
      const auto status = processor.Encode(segment.text, &found);
      Check(status.ok(), "{}: the text cannot be encoded: {}", where_, status.ToString());
      ids.insert(ids.end(), found.begin(), found.end());
    }
    return ids;
  }

 private:
  std::string where_;
  sentencepiece::SentencePieceProcessor start_, middle_;
  std::optional<sentencepiece::SentencePieceProcessor> spaced_;  // for texts that get no second space
};

}  // namespace

SentencePieceTable ReadSentencePieceTable(const std::string& bytes, const std::string& where) {
  return ReadSentencePieceFile(bytes, where).table;
}

std::unique_ptr<Tokenizer> LoadSentencePiece(const TokenizerSettings& settings, const std::string& bytes,
                                             const std::string& where) {
  return std::make_unique<SentencePieceTokenizer>(settings, bytes, where);
}

}  // namespace shiftrt
