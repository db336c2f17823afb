// SPDX-License-Identifier: Apache-2.0
// Parquet files that pyarrow wrote (goldens/make_parquet.py), and damaged ones.
#include "runtime/parquet.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/parquet/decode.h"
#include "runtime/random.h"
#include "tests/test_directory.h"

namespace shiftrt {
namespace {

using Json = nlohmann::json;

std::string Golden(const std::string& name) { return ReadFile(TestDirectory() / "goldens/parquet" / name); }

Json Rows(const std::string& bytes, const std::vector<std::string>& columns = {}, uint64_t limit = uint64_t{1} << 24) {
  ParquetFile file(bytes, "f", limit);
  Json rows = Json::array();
  for (int64_t group = 0; group < file.row_groups(); ++group)
    for (Json& row : file.ReadRowGroup(group, columns)) rows.push_back(std::move(row));
  EXPECT_EQ(static_cast<int64_t>(rows.size()), file.rows());
  return rows;
}

std::string ErrorOf(const std::string& bytes, uint64_t limit = uint64_t{1} << 24) {
  try {
    Rows(bytes, {}, limit);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Parquet, RowsAreThoseThatPyarrowWrote) {
  const Json all = Json::parse(Golden("expected.json"));
  ASSERT_EQ(all.size(), 9u);
  for (const auto& [name, expected] : all.items()) EXPECT_EQ(Rows(Golden(name)), expected) << name;
}

TEST(Parquet, RowGroupsAreReadOneByOne) {
  const std::string bytes = Golden("groups.parquet");
  ParquetFile file(bytes, "f");
  EXPECT_EQ(file.rows(), 300);
  ASSERT_EQ(file.row_groups(), 5);
  EXPECT_EQ(file.columns(), (std::vector<std::string>{"id", "text", "maybe", "tags"}));
  EXPECT_EQ(file.ReadRowGroup(4).size(), 20u);
  EXPECT_EQ(file.ReadRowGroup(4).front()["id"], 280);
  EXPECT_THROW(file.ReadRowGroup(5), Error);
  EXPECT_EQ(file.ReadRowGroup(1, {"text", "none"}).front(), Json({{"text", "line 0"}}));
}

TEST(Parquet, WhatIsNotSupportedIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"delta.parquet", "f: row group 0: column x: the encoding DELTA_BINARY_PACKED is not supported"},
      {"brotli.parquet", "column x: the codec BROTLI is not supported"},
      {"bytes.parquet", "column x: bytes that are not UTF-8 text"},
      {"map.parquet", "column x: a MAP is not supported"},
  };
  for (const auto& [name, message] : cases)
    EXPECT_NE(ErrorOf(Golden(name)).find(message), std::string::npos) << ErrorOf(Golden(name));
  EXPECT_EQ(Rows(Golden("map.parquet"), {"y"}), Json::parse(R"([{"y": 1}])"));  // what is not asked for may be anything
}

TEST(Parquet, FilesCutShortAreRefused) {
  const std::string bytes = Golden("required.parquet");
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_NE(ErrorOf(bytes.substr(0, size)), "no error") << size;
  EXPECT_NE(ErrorOf("").find("no Parquet file"), std::string::npos);
  EXPECT_NE(ErrorOf("PAR1" + std::string(8, '\0') + "PARE").find("encrypted"), std::string::npos);
  EXPECT_NE(ErrorOf("PAR1" + std::string("\xFF\xFF\xFF\xFF") + "PAR1").find("damaged: a footer"), std::string::npos);
}

// A damaged file gives an error or rows; what else could happen is seen by the sanitizers.
TEST(Parquet, DamageIsAnErrorOrRows) {
  Random random(1);
  int refused = 0;
  for (const char* name : {"snappy.parquet", "v2.parquet", "gzip.parquet", "zstd.parquet", "plain.parquet"}) {
    const std::string bytes = Golden(name);
    for (int round = 0; round < 300; ++round) {
      std::string damaged = bytes;
      for (int edits = 0; edits < 3; ++edits)
        damaged[random.Below(damaged.size())] = static_cast<char>(random.Below(256));
      refused += ErrorOf(damaged, 1 << 20) != "no error" ? 1 : 0;
    }
  }
  EXPECT_GT(refused, 300);
}

TEST(Parquet, WhatDecompressesToNoEndIsRefused) {
  EXPECT_NE(ErrorOf(Golden("groups.parquet"), 20000).find("more memory than is allowed"), std::string::npos);
  EXPECT_NE(ErrorOf(Golden("groups.parquet"), 1000).find("allowed"), std::string::npos);
  // The same row group again and again, as the metadata of many row groups may name it.
  const std::string bytes = Golden("groups.parquet");
  ParquetFile file(bytes, "f", uint64_t{1} << 18);
  const auto read = [&] {
    for (int i = 0; i < 1000; ++i) file.ReadRowGroup(0);
  };
  EXPECT_NO_THROW(file.ReadRowGroup(0));
  EXPECT_THROW(read(), Error);
}

TEST(Parquet, APageOfNothingMayBeCompressed) {
  const std::string nothing = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00";
  EXPECT_TRUE(parquet::Decompress(2, std::as_bytes(std::span(nothing)), 0, "g").empty());
}

using parquet::ByteReader;
parquet::Bytes BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string Snappy(std::string_view block, uint64_t size) {
  const auto out = parquet::Decompress(1, BytesOf(block), size, "s");
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

// Blocks written by hand from the format's description.
TEST(Parquet, SnappyBlocks) {
  EXPECT_EQ(Snappy(std::string_view("\x03\x08"
                                    "abc",
                                    5),
                   3),
            "abc");
  EXPECT_EQ(Snappy(std::string_view("\x0A\x04"
                                    "ab"
                                    "\x11\x02",
                                    6),
                   10),
            "ababababab");  // copy, 1 byte of offset
  EXPECT_EQ(Snappy(std::string_view("\x06\x08"
                                    "abc"
                                    "\x0A\x03\x00",
                                    8),
                   6),
            "abcabc");  // 2 bytes
  EXPECT_EQ(Snappy(std::string_view("\x06\x08"
                                    "abc"
                                    "\x0B\x03\x00\x00\x00",
                                    10),
                   6),
            "abcabc");                                                                 // 4 bytes
  EXPECT_EQ(Snappy("\x46\xF0\x45" + std::string(70, 'x'), 70), std::string(70, 'x'));  // a long literal
  EXPECT_THROW(Snappy(std::string_view("\x04\x08"
                                       "abc",
                                       5),
                      3),
               Error);  // another length
  EXPECT_THROW(Snappy(std::string_view("\x06\x08"
                                       "abc"
                                       "\x0A\x04\x00",
                                       8),
                      6),
               Error);  // before the start
  EXPECT_THROW(Snappy(std::string_view("\x06\x08"
                                       "abc"
                                       "\x0A\x00\x00",
                                       8),
                      6),
               Error);  // offset 0
  EXPECT_THROW(Snappy(std::string_view("\x03\x0C"
                                       "abc",
                                       5),
                      3),
               Error);  // past the end
  EXPECT_THROW(Snappy(std::string_view("\x05\x08"
                                       "abc",
                                       5),
                      5),
               Error);  // too short
}

std::vector<uint32_t> Hybrid(std::string_view text, int width, uint64_t count) {
  ByteReader in(BytesOf(text), "h");
  return parquet::DecodeHybrid(in, width, count);
}

TEST(Parquet, RunsAndBitPacking) {
  using Values = std::vector<uint32_t>;
  // 0 to 7 in 3 bits each, the example of Encodings.md.
  EXPECT_EQ(Hybrid("\x03\x88\xC6\xFA", 3, 8), (Values{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(Hybrid("\x03\x88\xC6\xFA", 3, 5), (Values{0, 1, 2, 3, 4}));
  EXPECT_EQ(Hybrid("\x08\x05\x04\x01", 3, 6), (Values{5, 5, 5, 5, 1, 1}));
  EXPECT_EQ(Hybrid(std::string_view("\x04\x01\x02\x03\x04", 5), 32, 2), (Values{0x04030201, 0x04030201}));
  EXPECT_EQ(Hybrid("", 0, 3), (Values{0, 0, 0}));
  EXPECT_THROW(Hybrid("\x03\x88\xC6", 3, 8), Error);                   // cut short
  EXPECT_THROW(Hybrid("\x08\x09", 3, 4), Error);                       // 9 in 3 bits
  EXPECT_THROW(Hybrid(std::string_view("\x00\x00", 2), 3, 4), Error);  // a run of none
  EXPECT_THROW(Hybrid("\x08\x05", 33, 4), Error);
  EXPECT_THROW(Hybrid("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F\x05", 3, 4), Error);
}

}  // namespace
}  // namespace shiftrt
