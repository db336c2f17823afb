// SPDX-License-Identifier: Apache-2.0
/// \file
/// Downloading models and data sets of the Hugging Face hub into its cache on this machine (docs/pull.md).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shiftrt/downloads.h"

namespace shiftrt {

/// Says what Pull() downloads.
struct PullSettings {
  /// "ORG/NAME", "ORG/NAME@REVISION" or a known name such as "qwen2-1.5b"; of a data set also the name of an evaluation
  /// task, "paper7" or a known text such as "c4".
  std::string name = {};
  bool dataset = false;                   ///< the name means a data set
  std::string revision = {};              ///< branch, tag or commit; empty: as the name says, or "main"
  std::vector<std::string> include = {};  ///< patterns of files, such as "*.gguf"; empty: what a model needs, or all
  std::vector<std::string> exclude = {};  ///< but not those that match one of these
  bool verify = false;  ///< also compare the checksums of the files that are there; else only their sizes
};

/// Calls during a download. Any may be empty.
struct PullObserver {
  std::function<void(const PulledRepository& repository)> begin = {};  ///< before the download of each repository
  DownloadProgress progress = {};                                      ///< while it goes on
  std::function<void(const PulledRepository& repository)> done = {};   ///< after the download of each repository
};

/// \return the names, besides "ORG/NAME", that a model may have, such as "qwen2-1.5b"
std::vector<std::string> KnownModelNames();
/// \return the names, besides "ORG/NAME", that PullSettings::name may have for a data set
std::vector<std::string> KnownDatasetNames();

/// Asks the hub what there is, and downloads nothing.
/// \param settings what to look for
/// \return the repositories: one, or one per task of a data set's name such as "paper7"
/// \throws UsageError for a name that is none; Error if the hub does not answer, nothing matches, the disk is too
///     small, or HF_HUB_OFFLINE is set
std::vector<PulledRepository> LookUp(const PullSettings& settings);

/// Downloads what is missing. What has arrived before an interruption is kept, and the same call continues from there.
/// \param settings what to download
/// \param observer is called during the download
/// \return the repositories, with the directories where they are
/// \throws as LookUp() does; Error naming the file that could not be downloaded; Interrupted
std::vector<PulledRepository> Pull(const PullSettings& settings, const PullObserver& observer = {});

}  // namespace shiftrt
