// SPDX-License-Identifier: Apache-2.0
#include "export/staged_directory.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/temporary_name.h"

namespace shiftrt {

namespace fs = std::filesystem;

void CheckNewDirectory(const fs::path& target) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(WithName(target), error);
  if (status.type() == fs::file_type::not_found) return;
  if (status.type() != fs::file_type::directory)
    FailUsage(Field("output"), "{}: exists and is not a directory; name a new one", target.string());
  if (!fs::is_empty(target, error) || error)
    FailUsage(Field("output"), "{}: the directory is not empty; remove it, or name a new one", target.string());
}

StagedDirectory::StagedDirectory(const fs::path& target) : target_(fs::absolute(WithName(target))) {
  CheckNewDirectory(target);
  RemoveAbandoned(target_);
  staged_ = TemporaryName(target_);
  HoldTemporary(staged_);
  std::error_code error;
  for (fs::path at = target_.parent_path(); !at.empty() && !fs::exists(at, error); at = at.parent_path())
    made_.push_back(at);
  try {
    fs::create_directories(staged_, error);
    Check(!error, "{}: cannot create the directory: {}", staged_.string(), error.message());
    lock_ = Descriptor(::open(staged_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    Check(lock_.is_open(), "{}: cannot open the directory: {}", staged_.string(), std::strerror(errno));
    Check(LockTemporary(lock_.get()), "{}: another process removed it", staged_.string());
  } catch (...) {
    Discard();
    throw;
  }
}

StagedDirectory::~StagedDirectory() { Discard(); }

void StagedDirectory::Discard() {
  std::error_code ignored;
  if (!staged_.empty()) fs::remove_all(staged_, ignored);
  ReleaseTemporary(staged_);
  for (const fs::path& directory : made_) fs::remove(directory, ignored);
}

void StagedDirectory::Commit() {
  CheckInterrupted();
  std::error_code error;
  fs::rename(staged_, target_, error);  // an empty directory is replaced, a full one is not
  Check(!error, "{}: cannot rename {} to it: {}", target_.string(), staged_.string(), error.message());
  ReleaseTemporary(staged_);
  staged_.clear();
  made_.clear();
  FlushDirectory(target_.parent_path());
}

}  // namespace shiftrt
