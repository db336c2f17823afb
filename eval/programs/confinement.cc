// SPDX-License-Identifier: Apache-2.0
#include "eval/programs/confinement.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <set>

#include "eval/programs/system_calls.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// Numbers that are the same on all processors and that older headers lack.
constexpr int64_t kCloseRange = 436, kMountSetattr = 442;
constexpr const char* kScratch = "/program";  // the empty directory in the new file system
constexpr uint32_t kRecursive = 0x8000;       // AT_RECURSIVE
// struct mount_attr and its flags
struct MountAttributes {
  uint64_t set = 0, clear = 0, propagation = 0, user_namespace = 0;
};
constexpr uint64_t kReadOnly = 1, kNoSetuid = 2, kNoDevices = 4;

enum Step : char {
  kMapUserStep,
  kPrivateStep,
  kMountStep,
  kMakeStep,
  kLibraryStep,
  kReadOnlyStep,
  kPivotStep,
  kDirectoryStep,
  kLimitStep,
  kDescriptorStep,
  kPrivilegeStep,
  kLandlockStep,
  kSeccompStep,
  kExecuteStep,
};
constexpr std::array<const char*, 14> kSteps = {"the user of the new namespace cannot be set",
                                                "mounts cannot be made private",
                                                "a file system in memory cannot be mounted",
                                                "the new file system cannot be filled",
                                                "the libraries of Python cannot be mounted",
                                                "mounts cannot be made read-only (this needs Linux 5.12)",
                                                "the new file system cannot be entered",
                                                "the empty directory cannot be entered",
                                                "limits cannot be set",
                                                "descriptors cannot be closed",
                                                "privileges cannot be given up",
                                                "Landlock does not restrict the process",
                                                "the filter of system calls cannot be set",
                                                "Python cannot be started"};

// Reports to the parent and ends the child.
[[noreturn]] void EndChild(Step step) noexcept {
  ConfinementFailure failure;
  failure.step = step;
  failure.error = errno;
  [[maybe_unused]] const ssize_t written = ::write(kReportDescriptor, &failure, sizeof(failure));
  ::_exit(1);
}

void Require(bool done, Step step) noexcept {
  if (!done) EndChild(step);
}

bool IsWithin(const std::string& path, const std::string& directory) {
  return path == directory || (path.starts_with(directory) && path[directory.size()] == '/');
}

// The libraries of the system and of Python that exist. Where one is a symbolic link, its target is among them, too. A
// path within another of them that is no link is left out.
std::vector<std::string> ExistingLibraries(const Python& python) {
  std::vector<std::string> wanted = {"/usr", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache"};
  wanted.insert(wanted.end(), python.libraries.begin(), python.libraries.end());
  std::set<std::string> found;
  std::error_code none;
  for (const std::string& path : wanted) {
    if (!fs::exists(path, none)) continue;
    found.insert(path);
    const std::string real = fs::canonical(path, none).string();
    if (!real.empty()) found.insert(real);
  }
  std::vector<std::string> libraries;
  for (const std::string& path : found) {
    const bool inside = std::any_of(libraries.begin(), libraries.end(), [&](const std::string& other) {
      return IsWithin(path, other) && !fs::is_symlink(other, none);
    });
    if (!inside) libraries.push_back(path);
  }
  return libraries;
}

void WriteOnce(const char* file, const std::string& text) noexcept {
  const int fd = ::open(file, O_WRONLY | O_CLOEXEC);
  Require(fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()), kMapUserStep);
  ::close(fd);
}

void MountSettings(const char* path, uint64_t set, uint32_t flags) noexcept {
  const MountAttributes attributes{.set = set};
  Require(::syscall(kMountSetattr, AT_FDCWD, path, flags, &attributes, sizeof(attributes)) == 0, kReadOnlyStep);
}

void Limit(int resource, int64_t value) noexcept {
  rlimit old{};
  Require(::getrlimit(static_cast<__rlimit_resource_t>(resource), &old) == 0, kLimitStep);
  const rlim_t least = std::min<rlim_t>(static_cast<rlim_t>(value), old.rlim_max);
  const rlimit limit{least, least};
  Require(::setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0, kLimitStep);
}

}  // namespace

const char* Name(Isolation isolation) { return isolation == Isolation::kNamespaces ? "namespaces" : "Landlock"; }

const char* ConfinementStep(int step) {
  return step >= 0 && step < std::ssize(kSteps) ? kSteps[static_cast<size_t>(step)] : "an unknown step failed";
}

Confinement::Confinement(Isolation isolation, const Python& python, std::vector<std::string> arguments,
                         std::string directory, const ProgramLimits& limits)
    : isolation_(isolation),
      executable_(python.executable),
      directory_(std::move(directory)),
      arguments_(std::move(arguments)),
      limits_(limits),
      filter_(SystemCallFilter(isolation == Isolation::kLandlock)),
      parent_(::getpid()) {
  Check(!filter_.empty(), "system calls are filtered on x86-64 and AArch64 only");
  // Within its namespace the process is a user without rights; outside it is the user of this program.
  user_map_ = fmt::format("65534 {} 1", ::geteuid());
  group_map_ = fmt::format("65534 {} 1", ::getegid());
  root_options_ = "size=4m,nr_inodes=4096,mode=755";
  scratch_options_ = fmt::format("size={},nr_inodes={},mode=700", limits.file_bytes, limits.files);
  scratch_ = directory_ + kScratch;
  for (std::string& argument : arguments_) argument_pointers_.push_back(argument.data());
  argument_pointers_.push_back(nullptr);
  const std::vector<std::string> libraries = ExistingLibraries(python);
  if (isolation == Isolation::kNamespaces) {
    root_ = MakeRoot(libraries);
  } else {
    MakeRuleset(libraries);
  }
}

Confinement::Root Confinement::MakeRoot(const std::vector<std::string>& libraries) const {
  Root root;
  std::set<std::string> directories = {scratch_};
  std::error_code none;
  for (const std::string& path : libraries) {
    const std::string place = directory_ + path;
    for (fs::path up = fs::path(path).parent_path(); up != up.root_path(); up = up.parent_path())
      directories.insert(directory_ + up.string());
    if (fs::is_symlink(path, none)) {
      root.links.emplace_back(fs::read_symlink(path, none).string(), place);
      continue;
    }
    if (fs::is_directory(path, none)) {
      directories.insert(place);
    } else {
      root.files.push_back(place);
    }
    root.libraries.emplace_back(path, place);
  }
  root.directories.assign(directories.begin(), directories.end());  // a directory comes before those in it
  return root;
}

void Confinement::MakeRuleset(const std::vector<std::string>& libraries) {
  const int64_t version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  Check(version >= 1, "this kernel has no Landlock (it came with Linux 5.13)");
  // All rights that the version knows: 13 at first, then those to move files, to cut them and to control devices.
  const uint64_t rights = version >= 5 ? 16 : version >= 3 ? 15 : version >= 2 ? 14 : 13;
  const uint64_t handled = (uint64_t{1} << rights) - 1;
  ruleset_ = Descriptor(static_cast<int>(::syscall(SYS_landlock_create_ruleset, &handled, sizeof(handled), 0)));
  if (ruleset_.is_open()) ruleset_ = Descriptor(::fcntl(ruleset_.get(), F_DUPFD_CLOEXEC, kReportDescriptor + 1));
  Check(ruleset_.is_open(), "cannot make rules of Landlock: {}", std::strerror(errno));
  std::error_code none;
  const auto allow = [&](const std::string& path, uint64_t access) {
    const Descriptor parent(::open(path.c_str(), O_PATH | O_CLOEXEC));
    if (!parent.is_open()) return;
    landlock_path_beneath_attr rule{};
    rule.allowed_access = access | (fs::is_directory(path, none) ? uint64_t{LANDLOCK_ACCESS_FS_READ_DIR} : 0);
    rule.parent_fd = parent.get();
    Check(::syscall(SYS_landlock_add_rule, ruleset_.get(), LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0,
          "cannot add a rule of Landlock for {}: {}", path, std::strerror(errno));
  };
  for (const std::string& path : libraries) allow(path, LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE);
  allow(directory_, LANDLOCK_ACCESS_FS_READ_FILE);
}

uint64_t Confinement::clone_flags() const {
  return isolation_ == Isolation::kNamespaces
             ? CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
             : 0;
}

void Confinement::MapUser() const noexcept {
  WriteOnce("/proc/self/setgroups", "deny");
  WriteOnce("/proc/self/uid_map", user_map_);
  WriteOnce("/proc/self/gid_map", group_map_);
}

void Confinement::EnterRoot() const noexcept {
  Require(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, kPrivateStep);
  const char* const root = directory_.c_str();
  Require(::mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, root_options_.c_str()) == 0, kMountStep);
  for (const std::string& directory : root_.directories)
    Require(::mkdir(directory.c_str(), 0755) == 0 || errno == EEXIST, kMakeStep);
  for (const std::string& file : root_.files) {
    const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    Require(fd >= 0, kMakeStep);
    ::close(fd);
  }
  for (const auto& [target, place] : root_.links) Require(::symlink(target.c_str(), place.c_str()) == 0, kMakeStep);
  for (const auto& [source, place] : root_.libraries) {
    Require(::mount(source.c_str(), place.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0, kLibraryStep);
    MountSettings(place.c_str(), kReadOnly | kNoSetuid | kNoDevices, kRecursive);
  }
  Require(::mount("tmpfs", scratch_.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, scratch_options_.c_str()) == 0, kMountStep);
  MountSettings(root, kReadOnly, 0);
  Require(::chdir(root) == 0 && ::syscall(SYS_pivot_root, ".", ".") == 0 && ::umount2(".", MNT_DETACH) == 0,
          kPivotStep);
}

void Confinement::SetLimits() const noexcept {
  Limit(RLIMIT_AS, limits_.memory);
  Limit(RLIMIT_CPU, limits_.cpu_seconds);
  Limit(RLIMIT_FSIZE, limits_.file_bytes);
  Limit(RLIMIT_NOFILE, limits_.open_files);
  Limit(RLIMIT_CORE, 0);
  // Without a namespace the limit counts all processes of the user. The filter refuses new ones in any case.
  if (isolation_ == Isolation::kNamespaces) Limit(RLIMIT_NPROC, limits_.threads);
}

void Confinement::Enter(const ProgramFiles& files) const noexcept {
  if (::dup2(files.report, kReportDescriptor) != kReportDescriptor) ::_exit(1);
  ::setsid();
  // The process does not outlive the thread that started it.
  Require(::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, kPrivilegeStep);
  if (isolation_ == Isolation::kLandlock && ::getppid() != parent_) ::_exit(1);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (isolation_ == Isolation::kNamespaces) {
    MapUser();
    EnterRoot();
  }
  Require(::chdir(isolation_ == Isolation::kNamespaces ? kScratch : directory_.c_str()) == 0, kDirectoryStep);
  SetLimits();
  Require(::dup2(files.input, 0) == 0 && ::dup2(files.null, 1) == 1 && ::dup2(files.null, 2) == 2, kDescriptorStep);
  Require(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, kPrivilegeStep);
  if (isolation_ == Isolation::kLandlock)
    Require(::syscall(SYS_landlock_restrict_self, ruleset_.get(), 0) == 0, kLandlockStep);
  Require(::syscall(kCloseRange, kReportDescriptor + 1, ~0U, 0) == 0, kDescriptorStep);
  const sock_fprog filter{static_cast<unsigned short>(filter_.size()), const_cast<sock_filter*>(filter_.data())};
  Require(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, kSeccompStep);
  char* const environment[] = {nullptr};
  ::execve(executable_.c_str(), argument_pointers_.data(), environment);
  EndChild(kExecuteStep);
}

}  // namespace shiftrt
