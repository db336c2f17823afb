// SPDX-License-Identifier: Apache-2.0
// The paths of outputs. They are checked before the work, so that none replaces an input or another output.
#pragma once

#include <filesystem>
#include <string>

namespace CLI {
class App;
}

namespace shiftrt {

// Names of the validators by which the options that are outputs are known.
constexpr const char *kFileOutput = "file output", *kDirectoryOutput = "directory output";

// Throws UsageError for options of a parsed command that have an empty value; for an output that is the file of another
// output, or of an input; and for one that is a file of a model that the command reads. Returns whether the user has
// named an output.
bool CheckPaths(CLI::App& command);

// An absolute path without links, dots and a '/' at its end, so that two paths of one file are the same. The file need
// not exist. "" stays "".
std::filesystem::path WholePath(const std::filesystem::path& path);

// Returns the name of a directory, also that of "out/" and ".".
std::string NameOfDirectory(const std::filesystem::path& directory);
// Returns the checkpoint of a training whose result is saved to `directory`: the file NAME.checkpoint next to it.
std::filesystem::path CheckpointFor(const std::filesystem::path& directory);

// False for a file in which a journal (runtime/checked_lines.h) would be taken up although it is something else: it has
// no line whose checksum is right, nor the beginning of one. Throws Error if it cannot be read.
bool MayBeJournal(const std::filesystem::path& file);

}  // namespace shiftrt
