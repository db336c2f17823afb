// SPDX-License-Identifier: Apache-2.0
// The documents that rows of data hold, and files that hold no document that can be read.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/documents.h"

namespace shiftrt {

/// Reads the document of a row. A column of null is a column that is not there.
/// \param row An object with a string `text`, or a row of Alpaca: `instruction`, `input` (which may be missing) and
///   `output`. A row with a text, an empty instruction and an empty output is its text. An object without these
///   may have a `question` and an `answer`, as GSM8K has.
/// \param where The row in messages.
/// \return The document.
/// \throws Error that names the columns of a row that is neither.
Documents::Document DocumentOf(const nlohmann::json& row, const std::string& where);

/// \param columns The names of the columns of a table.
/// \param name The file, for messages.
/// \throws Error that names the columns, if no documents can be made of them.
void RequireColumns(const std::vector<std::string>& columns, const std::string& name);

/// Reads the rows of a table whose first record names its columns.
/// \param text The table.
/// \param separator The character between two fields.
/// \param name The file, for messages.
/// \return The rows, of which each has the columns that documents are made of and that are not empty.
/// \throws Error with file and line for a table without such columns and for a record of another length.
std::vector<nlohmann::json> RowsOfTable(std::string_view text, char separator, const std::string& name);

/// \param file A file that holds texts, for its name.
/// \return '\t' for a .tsv, ',' for a .csv, and 0 for any other file; a compressed one is named by what is in it.
char SeparatorOf(const std::filesystem::path& file);

/// Refuses a directory, for which messages name a file in it that can be read.
/// \param file A path that should be of a file.
/// \throws Error for a directory.
void RefuseDirectory(const std::filesystem::path& file);

/// Refuses bytes that are in a format of their own, such as Arrow or bzip2, and would otherwise be taken as plain text.
/// \param bytes The content of the file.
/// \param name The file, for messages.
/// \throws Error that names the format and what to do with it.
void RefuseOtherFormats(std::string_view bytes, const std::string& name);

}  // namespace shiftrt
