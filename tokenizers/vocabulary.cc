// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/vocabulary.h"

#include <algorithm>

#include "runtime/check.h"
#include "runtime/printable.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

void Vocabulary::Add(const std::string& piece, int64_t id, const std::string& where) {
  Check(id >= 0 && id < kMaxTokenId, "{}: token id {} of '{}' is not between 0 and {}", where, id, piece,
        kMaxTokenId - 1);
  Check(!piece.empty(), "{}: token {} is empty", where, id);
  Check(IsValidUtf8(piece), "{}: token {} is not valid UTF-8", where, id);
  const auto [entry, fresh] = ids_.try_emplace(piece, static_cast<int32_t>(id));
  Check(entry->second == id, "{}: token '{}' has two ids, {} and {}", where, piece, entry->second, id);
  if (!fresh) return;
  if (id >= size()) pieces_.resize(id + 1);
  Check(pieces_[id] == nullptr, "{}: id {} is given to both '{}' and '{}'", where, id,
        pieces_[id] ? *pieces_[id] : std::string(), piece);
  pieces_[id] = &entry->first;
  longest_ = std::max(longest_, piece.size());
}

std::optional<int32_t> Vocabulary::Find(std::string_view piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Vocabulary::Piece(int32_t id) const { return id >= 0 && id < size() ? pieces_[id] : nullptr; }

void AddedTokens::Add(const AddedToken& token, std::string_view spelling) {
  uint32_t node = 0;
  for (const char c : spelling) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<uint8_t>(c);
    const auto [entry, fresh] = next_.try_emplace(edge, static_cast<uint32_t>(ends_.size()));
    if (fresh) ends_.push_back(-1);
    node = entry->second;
  }
  ends_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::pair<int32_t, size_t> AddedTokens::LongestMatch(std::string_view text) const {
  std::pair<int32_t, size_t> best = {-1, 0};
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto edge = next_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[i]));
    if (edge == next_.end()) break;
    node = edge->second;
    if (ends_[node] >= 0) best = {ends_[node], i + 1};
  }
  return best;
}

std::vector<AddedTokens::Segment> AddedTokens::Split(std::string_view text) const {
  std::vector<Segment> segments;
  size_t done = 0;
  for (size_t at = 0; !tokens_.empty() && at < text.size();) {
    const auto [index, length] = LongestMatch(text.substr(at));
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[index];
    const size_t begin = token.lstrip ? done + TrailingSpace(text.substr(done, at - done)) : at;
    at += length;
    if (token.rstrip) at += LeadingSpace(text.substr(at));
    if (begin > done) segments.push_back({text.substr(done, begin - done), -1});
    segments.push_back({text.substr(begin, at - begin), static_cast<int32_t>(token.id)});
    done = at;
  }
  if (done < text.size()) segments.push_back({text.substr(done), -1});
  return segments;
}

void PieceDecoder::Append(std::string_view piece, std::string& bytes) const {
  if (byte_level) {
    if (!AppendAlphabetBytes(piece, bytes)) bytes += piece;
    return;
  }
  const int byte = byte_fallback ? ParseBytePiece(piece) : -1;
  if (byte >= 0) {
    bytes += static_cast<char>(byte);
    return;
  }
  std::string text(piece);
  for (const auto& [from, to] : replacements) text = ReplaceWithin(piece.size(), text, from, to);
  bytes += text;
}

const std::string& VocabularyTokenizer::PieceOrThrow(int32_t id) const {
  const std::string* piece = vocabulary_.Piece(id);
  Check(piece != nullptr, "token id {} is not in the vocabulary of {}", id, vocabulary_.size());
  return *piece;
}

std::string VocabularyTokenizer::Piece(int32_t id) const { return PieceOrThrow(id); }

std::string VocabularyTokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size() && vocabulary_.Piece(id) == nullptr) continue;
    const std::string& piece = PieceOrThrow(id);
    const auto added = special_.find(id);
    if (skip_special && added != special_.end() && added->second) continue;
    decoder_.Append(piece, bytes);
  }
  size_t spaces = 0;
  while (spaces < bytes.size() && spaces < static_cast<size_t>(decoder_.strip_spaces) && bytes[spaces] == ' ') ++spaces;
  return ReplaceInvalidUtf8(std::string_view(bytes).substr(spaces));
}

void VocabularyTokenizer::AddTokens(const std::vector<AddedToken>& tokens, const std::string& where) {
  for (const AddedToken& token : tokens) {
    vocabulary_.Add(token.content, token.id, where);
    special_[static_cast<int32_t>(token.id)] = token.special;
  }
}

void VocabularyTokenizer::SetSpecials(const TokenizerSettings& settings, int32_t bos, int32_t eos, bool adds_bos) {
  const std::string where = settings.directory.string();
  const auto resolve = [&](const char* what, const std::optional<std::string>& name, int64_t id, int32_t fallback) {
    if (name) {
      const auto found = vocabulary_.Find(*name);
      if (!found)
        notes_.push_back(fmt::format("{}: the {} '{}' is not in the vocabulary, so that the tokenizer has none.", where,
                                     what, Printable(*name)));
      return found.value_or(-1);
    }
    if (fallback >= 0 || id < 0 || id >= vocabulary_.size()) return fallback;
    return static_cast<int32_t>(id);
  };
  bos_ = resolve("bos_token", settings.bos, settings.bos_id, bos);
  eos_ = resolve("eos_token", settings.eos, settings.eos_id, eos);
  notes_.insert(notes_.end(), settings.notes.begin(), settings.notes.end());
  if (!settings.add_bos.value_or(adds_bos)) return;
  Check(bos_ >= 0, "{}: the tokenizer adds a BOS token, but {}", where,
        settings.bos ? fmt::format("'{}' is not in the vocabulary", Printable(*settings.bos)) : "names none");
  prefix_ = {bos_};
}

void CheckText(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto [length, valid] = FirstCharacter(text.substr(at));
    Check(valid, "text is not valid UTF-8 at byte {}", at);
    at += length;
  }
}

std::vector<int32_t> Tokenizer::EncodeWithBos(std::string_view text) const {
  std::vector<int32_t> ids = Encode(text);
  ids.insert(ids.begin(), prefix_.begin(), prefix_.end());
  return ids;
}

std::vector<int32_t> Tokenizer::EncodeWithBos(std::string_view text, const std::filesystem::path& file) const {
  try {
    return EncodeWithBos(text);
  } catch (const Error& error) {
    Fail("{}: {}", file.string(), error.what());
  }
}

std::string DecodeReply(const Tokenizer& tokenizer, std::span<const int32_t> prompt, std::span<const int32_t> reply) {
  std::vector<int32_t> ids(prompt.begin(), prompt.end());
  std::string_view replaced = "\uFFFD";
  std::string text = tokenizer.Decode(ids, true);
  if (text.ends_with(replaced)) text.resize(text.size() - replaced.size());  // the reply may complete a character
  const size_t before = text.size();
  ids.insert(ids.end(), reply.begin(), reply.end());
  text = tokenizer.Decode(ids, true);
  return text.substr(std::min(before, text.size()));
}

}  // namespace shiftrt
