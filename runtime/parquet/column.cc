// SPDX-License-Identifier: Apache-2.0
#include "runtime/parquet/column.h"

#include <algorithm>
#include <bit>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/parquet/decode.h"

namespace shiftrt::parquet {

namespace {

using Json = nlohmann::json;

enum Encoding { kPlain = 0, kPlainDictionary = 2, kRle = 3, kRleDictionary = 8 };
enum PageType { kDataPage = 0, kIndexPage, kDictionaryPage, kDataPageV2 };

constexpr int64_t kMaxPage = int64_t{1} << 30;
constexpr uint64_t kBytesPerEntry = 16, kBytesPerValue = 32;  // in memory, about

// True if the bytes are UTF-8 (RFC 3629).
bool IsUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<uint8_t>(text[at++]);
    if (lead < 0x80) continue;
    const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4 || text.size() - at < static_cast<size_t>(more)) return false;
    uint32_t code = lead & (0x3F >> more);
    for (int i = 0; i < more; ++i) {
      const auto byte = static_cast<uint8_t>(text[at++]);
      if ((byte & 0xC0) != 0x80) return false;
      code = code << 6 | (byte & 0x3F);
    }
    const bool shortest = code >= (more == 1 ? 0x80u : more == 2 ? 0x800u : 0x10000u);
    if (!shortest || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
  }
  return true;
}

int LevelBits(int highest) { return std::bit_width(static_cast<unsigned>(highest)); }

class Reader {
 public:
  Reader(const SchemaNode& leaf, Allowance& allowance, const std::string& where)
      : leaf_(leaf), allowance_(allowance), where_(where) {}

  Column Read(Bytes chunk, int64_t codec, uint64_t entries) {
    ByteReader in(chunk, where_);
    while (column_.definition.size() < entries) {
      CheckInterrupted();
      const Thrift header = Thrift::ReadStruct(in);
      const int64_t type = header.Integer(1, "the type of a page", 0, 100);
      const auto size = static_cast<uint64_t>(header.Integer(2, "uncompressed_page_size", 0, kMaxPage));
      const Bytes body = in.Take(static_cast<uint64_t>(header.Integer(3, "compressed_page_size", 0, kMaxPage)));
      const uint64_t left = entries - column_.definition.size();
      if (type == kDataPage) {
        ReadPage(header.Struct(5, "data_page_header"), Unpack(codec, body, size), left);
      } else if (type == kDataPageV2) {
        ReadPageV2(header.Struct(8, "data_page_header_v2"), codec, body, size, left);
      } else if (type == kDictionaryPage) {
        ReadDictionary(header.Struct(7, "dictionary_page_header"), Unpack(codec, body, size));
      } else {
        Check(type == kIndexPage, "{}: a page of type {} is not supported", where_, type);
      }
    }
    return std::move(column_);
  }

 private:
  std::vector<std::byte> Unpack(int64_t codec, Bytes body, uint64_t size) {
    allowance_.Take(size, where_);
    return Decompress(codec, body, size, where_);
  }

  uint64_t Entries(const Thrift& header, uint64_t left) const {
    const auto count = static_cast<uint64_t>(header.Integer(1, "num_values of a page", 0, INT32_MAX));
    Check(count <= left, "{}: damaged: a page of {} values, {} are left", where_, count, left);
    return count;
  }

  std::vector<uint8_t> Levels(ByteReader in, int highest, uint64_t count) {
    if (highest == 0) return std::vector<uint8_t>(count);
    const std::vector<uint32_t> decoded = DecodeHybrid(in, LevelBits(highest), count);
    std::vector<uint8_t> levels(count);
    for (uint64_t i = 0; i < count; ++i) {
      Check(decoded[i] <= static_cast<uint32_t>(highest), "{}: damaged: a level of {}, at most {}", where_, decoded[i],
            highest);
      levels[i] = static_cast<uint8_t>(decoded[i]);
    }
    return levels;
  }

  void ReadPage(const Thrift& header, const std::vector<std::byte>& page, uint64_t left) {
    const uint64_t count = Entries(header, left);
    allowance_.Take(count * kBytesPerEntry, where_);
    ByteReader in(page, where_);
    const auto levels = [&](int highest, int encoding_field) {
      if (highest == 0) return std::vector<uint8_t>(count);
      const int64_t encoding = header.Integer(encoding_field, "the encoding of levels", 0, 100);
      Check(encoding == kRle, "{}: levels in the encoding {} are not supported (RLE)", where_, EncodingName(encoding));
      const uint32_t size = in.Word();
      return Levels(ByteReader(in.Take(size), where_), highest, count);
    };
    const std::vector<uint8_t> repetition = levels(leaf_.max_repetition, 4);
    const std::vector<uint8_t> definition = levels(leaf_.max_definition, 3);
    Append(repetition, definition, header.Integer(2, "the encoding of a page", 0, 100), in);
  }

  void ReadPageV2(const Thrift& header, int64_t codec, Bytes body, uint64_t size, uint64_t left) {
    const uint64_t count = Entries(header, left);
    allowance_.Take(count * kBytesPerEntry, where_);
    ByteReader in(body, where_);
    const auto definition_size = static_cast<uint64_t>(header.Integer(5, "definition_levels_byte_length", 0, kMaxPage));
    const auto repetition_size = static_cast<uint64_t>(header.Integer(6, "repetition_levels_byte_length", 0, kMaxPage));
    Check(definition_size + repetition_size <= size, "{}: damaged: levels longer than their page", where_);
    const ByteReader repetition_bytes(in.Take(repetition_size), where_);
    const ByteReader definition_bytes(in.Take(definition_size), where_);
    const std::vector<uint8_t> repetition = Levels(repetition_bytes, leaf_.max_repetition, count);
    const std::vector<uint8_t> definition = Levels(definition_bytes, leaf_.max_definition, count);
    const bool compressed = !header.Has(7) || header.Integer(7, "is_compressed", 0, 1) == 1;
    const std::vector<std::byte> values =
        Unpack(compressed ? codec : 0, in.rest(), size - definition_size - repetition_size);
    Append(repetition, definition, header.Integer(4, "the encoding of a page", 0, 100), ByteReader(values, where_));
  }

  void ReadDictionary(const Thrift& header, const std::vector<std::byte>& page) {
    Check(dictionary_.empty(), "{}: damaged: a second dictionary", where_);
    const auto count = static_cast<uint64_t>(header.Integer(1, "num_values of a dictionary", 0, INT32_MAX));
    const int64_t encoding = header.Integer(2, "the encoding of a dictionary", 0, 100);
    Check(encoding == kPlain || encoding == kPlainDictionary, "{}: a dictionary in the encoding {} is not supported",
          where_, EncodingName(encoding));
    dictionary_ = Plain(ByteReader(page, where_), count);
  }

  void Append(const std::vector<uint8_t>& repetition, const std::vector<uint8_t>& definition, int64_t encoding,
              ByteReader in) {
    const auto count = static_cast<uint64_t>(
        std::count(definition.begin(), definition.end(), static_cast<uint8_t>(leaf_.max_definition)));
    column_.repetition.insert(column_.repetition.end(), repetition.begin(), repetition.end());
    column_.definition.insert(column_.definition.end(), definition.begin(), definition.end());
    std::vector<Json> values = count == 0 ? std::vector<Json>() : Values(encoding, std::move(in), count);
    std::move(values.begin(), values.end(), std::back_inserter(column_.values));
  }

  std::vector<Json> Values(int64_t encoding, ByteReader in, uint64_t count) {
    if (encoding == kPlain) return Plain(std::move(in), count);
    if (encoding == kPlainDictionary || encoding == kRleDictionary) return FromDictionary(std::move(in), count);
    const bool flags = encoding == kRle && leaf_.type == kBoolean;
    Check(flags, "{}: the encoding {} is not supported (PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY)", where_,
          EncodingName(encoding));
    allowance_.Take(count * kBytesPerValue, where_);
    const uint32_t size = in.Word();
    ByteReader runs(in.Take(size), where_);
    std::vector<Json> values;
    for (const uint32_t flag : DecodeHybrid(runs, 1, count)) values.emplace_back(flag != 0);
    return values;
  }

  std::vector<Json> FromDictionary(ByteReader in, uint64_t count) {
    allowance_.Take(count * kBytesPerValue, where_);
    const int width = in.Byte();
    std::vector<Json> values;
    for (const uint32_t index : DecodeHybrid(in, width, count)) {
      Check(index < dictionary_.size(), "{}: damaged: entry {} of a dictionary of {}", where_, index,
            dictionary_.size());
      const Json& value = dictionary_[index];
      if (value.is_string()) allowance_.Take(value.get_ref<const std::string&>().size(), where_);
      values.push_back(value);
    }
    return values;
  }

  std::vector<Json> Plain(ByteReader in, uint64_t count) {
    // This check comes before memory is allocated: no value takes less than a bit, and no value but a flag less than 4
    // bytes.
    const uint64_t most = leaf_.type == kBoolean ? uint64_t{in.left()} * 8 : uint64_t{in.left()} / 4;
    Check(count <= most, "{}: damaged: {} values in {} bytes", where_, count, in.left());
    allowance_.Take(count * kBytesPerValue, where_);
    std::vector<Json> values;
    values.reserve(count);
    uint8_t flags = 0;
    for (uint64_t i = 0; i < count; ++i) {
      if (leaf_.type == kBoolean) {
        if (i % 8 == 0) flags = in.Byte();
        values.emplace_back((flags >> (i % 8) & 1) != 0);
      } else {
        values.push_back(PlainValue(in));
      }
    }
    return values;
  }

  Json PlainValue(ByteReader& in) {
    if (leaf_.type == kByteArray) {
      const uint32_t size = in.Word();
      const Bytes bytes = in.Take(size);
      allowance_.Take(size, where_);
      std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      Check(IsUtf8(text), "{}: bytes that are not UTF-8 text are not supported", where_);
      return text;
    }
    const uint32_t low = in.Word();
    if (leaf_.type == kFloat) return static_cast<double>(std::bit_cast<float>(low));
    if (leaf_.type == kInt32) return leaf_.is_unsigned ? Json(low) : Json(static_cast<int32_t>(low));
    const uint64_t word = uint64_t{in.Word()} << 32 | low;
    if (leaf_.type == kDouble) return std::bit_cast<double>(word);
    return leaf_.is_unsigned ? Json(word) : Json(static_cast<int64_t>(word));
  }

  const SchemaNode& leaf_;
  Allowance& allowance_;
  const std::string& where_;
  std::vector<Json> dictionary_;
  Column column_;
};

}  // namespace

void Allowance::Take(uint64_t bytes, const std::string& where) {
  Check(bytes <= left_, "{}: the row groups take more memory than is allowed", where);
  left_ -= bytes;
}

Column ReadColumn(Bytes file, const SchemaNode& leaf, const Thrift& metadata, Allowance& allowance,
                  const std::string& where) {
  const auto size = static_cast<int64_t>(file.size());
  const int64_t codec = metadata.Integer(4, "the codec", 0, 100);
  const int64_t entries = metadata.Integer(5, "num_values", 0, INT64_MAX);
  const int64_t length = metadata.Integer(7, "total_compressed_size", 0, size);
  int64_t begin = metadata.Integer(9, "data_page_offset", 0, size);
  if (metadata.Has(11)) {  // some writers give a dictionary that is not there the offset 0
    const int64_t dictionary = metadata.Integer(11, "dictionary_page_offset", 0, size);
    if (dictionary > 0) begin = std::min(begin, dictionary);
  }
  Check(begin <= size - length, "{}: damaged: {} bytes at {} in a file of {}", where, length, begin, size);
  Check(metadata.Integer(1, "the type of a column chunk", 0, 100) == leaf.type,
        "{}: damaged: the column has another type than in the schema", where);
  const Bytes chunk = file.subspan(static_cast<size_t>(begin), static_cast<size_t>(length));
  return Reader(leaf, allowance, where).Read(chunk, codec, static_cast<uint64_t>(entries));
}

}  // namespace shiftrt::parquet
