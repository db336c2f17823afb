// SPDX-License-Identifier: Apache-2.0
// Downloads as commands make them: announced on standard error, with a bar per file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "include/shiftrt/evaluate.h"
#include "include/shiftrt/pull.h"

namespace shiftrt {

// Shows a download on standard error. On a terminal: a bar with rate and time left per file under way, and a line of
// the whole; elsewhere a line per finished file that took a second or more. Nothing where `quiet`.
DownloadProgress ShowDownload(bool quiet);

// "Qwen/Qwen2-1.5B, commit 8a16abf2848e: 9 files, 3.1 GB, of which 1.2 GB are to come".
std::string Announcement(const PulledRepository& repository);
// Says on standard error what is pulled and how large it is; if `quiet`, only that a repository has another name.
void Announce(const PulledRepository& repository, bool quiet);
// Says on standard error, after an interruption, that what has arrived is kept.
void SayWhatIsKept();

// Pulls the text that a name means where it is not there and may be pulled; returns whether it is there.
bool PullMissingText(const std::string& name, bool offline, bool quiet);

// Pulls the rows of tasks that are neither in SuiteSettings::data nor in the cache, and those that shots are drawn
// from. Where pulling is forbidden, nothing happens: whoever looks for the rows says what is missing.
void PullMissingRows(const SuiteSettings& suites, bool offline, bool quiet);

// Pulls the model that `--model` names where it is a repository of the hub without a whole copy here. Throws Error with
// the command that pulls it where `offline`, or HF_HUB_OFFLINE, forbids that.
void PullMissingModel(const std::string& name, bool offline, bool quiet);

}  // namespace shiftrt
