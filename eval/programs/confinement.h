// SPDX-License-Identifier: Apache-2.0
// How a process confines itself before it runs a program that is not trusted.
#pragma once

#include <linux/filter.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "eval/programs/python.h"
#include "runtime/descriptor.h"

namespace shiftrt {

enum class Isolation {
  // The process has a user, a network without devices, process ids and a file system of its own. In the latter are the
  // libraries, which cannot be written, and an empty directory in memory.
  kNamespaces,
  // The process sees the files of the user, but Landlock lets it open the libraries only, for reading, and an empty
  // directory.
  kLandlock,
};
const char* Name(Isolation isolation);

struct ProgramLimits {
  double seconds = 3;  // from the beginning of the program; the reference's default
  int64_t cpu_seconds = 5;
  int64_t memory = int64_t{2} << 30;       // bytes of address space
  int64_t file_bytes = int64_t{16} << 20;  // each file, and all files together
  int64_t open_files = 64, files = 256, threads = 64;
};

// The descriptors of a process: its standard input, its output, and the pipe to which it reports. All are above
// kReportDescriptor.
struct ProgramFiles {
  int input = -1, null = -1, report = -1;
};
inline constexpr int kReportDescriptor = 3;  // the descriptor of the report in the new process

// A step of the confinement that failed, as the process reports it.
struct ConfinementFailure {
  char mark = 'E';
  char step = 0;  // an index of ConfinementStep()
  int32_t error = 0;
};
const char* ConfinementStep(int step);

// Everything is prepared by the parent, because between clone() and execve() a child of a program with threads may call
// nothing that allocates memory or takes a lock.
class Confinement {
 public:
  // `directory`: an empty directory, on which the namespaces mount theirs. `arguments`: those of Python. Throws Error
  // if the kernel has no Landlock or the processor is not supported.
  Confinement(Isolation isolation, const Python& python, std::vector<std::string> arguments, std::string directory,
              const ProgramLimits& limits);

  // The flags of clone() for the child that calls Enter.
  uint64_t clone_flags() const;
  // Called by the child: confines it and becomes Python. Reports a ConfinementFailure and ends if that fails.
  [[noreturn]] void Enter(const ProgramFiles& files) const noexcept;

 private:
  // The contents of a new file system, by their paths before it is entered.
  struct Root {
    std::vector<std::string> directories = {}, files = {};            // to be made, empty
    std::vector<std::pair<std::string, std::string>> links = {};      // targets and places
    std::vector<std::pair<std::string, std::string>> libraries = {};  // sources and places
  };

  Root MakeRoot(const std::vector<std::string>& libraries) const;
  void MakeRuleset(const std::vector<std::string>& libraries);
  void MapUser() const noexcept;
  void EnterRoot() const noexcept;
  void SetLimits() const noexcept;

  Isolation isolation_;
  std::string executable_, directory_, user_map_, group_map_, root_options_, scratch_options_, scratch_;
  std::vector<std::string> arguments_;
  std::vector<char*> argument_pointers_;
  ProgramLimits limits_;
  Root root_;
  Descriptor ruleset_;
  std::vector<sock_filter> filter_;
  pid_t parent_;
};

}  // namespace shiftrt
