// SPDX-License-Identifier: Apache-2.0
// A library to be preloaded: one call of the C library fails. SHIFTRT_FAIL=KIND:N makes call number N of a kind fail,
// counted from the beginning of main(). With SHIFTRT_COUNT=FILE, the numbers of calls are written to FILE at the end, a
// line "KIND COUNT" each. With SHIFTRT_STARTED=FILE, main() adds a byte to FILE before anything else. The kinds of
// reading and writing are about regular files other than the standard streams:
//   memory       malloc returns null
//   interrupt    SIGINT arrives when malloc is called, as from Ctrl-C
//   open         open, openat and fopen fail with EIO
//   read         read and pread fail with EIO
//   short-read   read and pread return half of the bytes, which is allowed
//   end          read and pread return 0, as at the end of a file
//   write        write and pwrite fail with EIO
//   short-write  write and pwrite write half of the bytes, which is allowed
//   room         the disk is full behind N written bytes
//   sync         fsync fails with EIO
//   rename       rename fails with EIO
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

enum Kind { kMemory, kInterrupt, kOpen, kRead, kShortRead, kEnd, kWrite, kShortWrite, kRoom, kSync, kRename, kKinds };
constexpr const char* kNames[kKinds] = {"memory", "interrupt",   "open", "read", "short-read", "end",
                                        "write",  "short-write", "room", "sync", "rename"};
std::atomic<bool> counting = false;
std::atomic<long> calls[kKinds];
long failing[kKinds];  // 0: none of this kind

// Counts a call, and says whether it is the one that fails.
bool Fails(Kind kind, int error) {
  if (!counting || ++calls[kind] != failing[kind]) return false;
  errno = error;
  return true;
}

// The C library's own function of this name.
template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool IsFile(int fd) {
  if (!counting || fd <= STDERR_FILENO) return false;
  struct stat info;
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

// Calls `real(size)` as the kinds of reading say.
template <typename Call>
ssize_t Read(int fd, size_t size, Call&& real) {
  if (!IsFile(fd)) return real(size);
  if (Fails(kRead, EIO)) return -1;
  if (Fails(kEnd, 0)) return 0;
  if (Fails(kShortRead, 0)) return real(size - size / 2);
  return real(size);
}

template <typename Call>
ssize_t Write(int fd, size_t size, Call&& real) {
  if (!IsFile(fd)) return real(size);
  if (Fails(kWrite, EIO)) return -1;
  if (Fails(kShortWrite, 0)) return real(size - size / 2);
  const long before = calls[kRoom].fetch_add(static_cast<long>(size));
  if (failing[kRoom] == 0) return real(size);
  const long room = failing[kRoom] - before;
  if (room <= 0) {
    errno = ENOSPC;
    return -1;
  }
  return real(std::min(size, static_cast<size_t>(room)));
}

mode_t ModeOf(int flags, va_list more) { return (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0; }

using Main = int (*)(int, char**, char**);
Main program = nullptr;

int CountedMain(int argc, char** argv, char** environment) {
  if (const char* text = std::getenv("SHIFTRT_FAIL")) {
    const char* const colon = std::strchr(text, ':');
    for (int kind = 0; kind < kKinds; ++kind)
      if (colon != nullptr && std::strncmp(text, kNames[kind], colon - text) == 0 &&
          std::strlen(kNames[kind]) == static_cast<size_t>(colon - text))
        failing[kind] = std::atol(colon + 1);
  }
  if (const char* file = std::getenv("SHIFTRT_STARTED")) {
    const int fd = ::open(file, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (::write(fd, "m", 1) != 1) ::_exit(96);
    ::close(fd);
  }
  counting = true;
  const int status = program(argc, argv, environment);
  counting = false;
  if (const char* file = std::getenv("SHIFTRT_COUNT")) {
    const int fd = ::open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (int kind = 0; kind < kKinds; ++kind) ::dprintf(fd, "%s %ld\n", kNames[kind], calls[kind].load());
    ::close(fd);
  }
  return status;
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t size);

void* malloc(size_t size) {
  if (Fails(kInterrupt, 0)) std::raise(SIGINT);
  return Fails(kMemory, ENOMEM) ? nullptr : __libc_malloc(size);
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = ModeOf(flags, more);
  va_end(more);
  return Fails(kOpen, EIO) ? -1 : Real<decltype(open)>("open")(path, flags, mode);
}

int openat(int directory, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = ModeOf(flags, more);
  va_end(more);
  return Fails(kOpen, EIO) ? -1 : Real<decltype(openat)>("openat")(directory, path, flags, mode);
}

FILE* fopen(const char* path, const char* mode) {
  return Fails(kOpen, EIO) ? nullptr : Real<decltype(fopen)>("fopen")(path, mode);
}

ssize_t read(int fd, void* bytes, size_t size) {
  return Read(fd, size, [&](size_t part) { return Real<decltype(read)>("read")(fd, bytes, part); });
}

ssize_t pread(int fd, void* bytes, size_t size, off_t offset) {
  return Read(fd, size, [&](size_t part) { return Real<decltype(pread)>("pread")(fd, bytes, part, offset); });
}

ssize_t write(int fd, const void* bytes, size_t size) {
  return Write(fd, size, [&](size_t part) { return Real<decltype(write)>("write")(fd, bytes, part); });
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  return Write(fd, size, [&](size_t part) { return Real<decltype(pwrite)>("pwrite")(fd, bytes, part, offset); });
}

int fsync(int fd) { return Fails(kSync, EIO) ? -1 : Real<decltype(fsync)>("fsync")(fd); }

int rename(const char* from, const char* to) {
  return Fails(kRename, EIO) ? -1 : Real<decltype(rename)>("rename")(from, to);
}

int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(), void (*loader)(), void* stack) {
  program = main;
  return Real<decltype(__libc_start_main)>("__libc_start_main")(&CountedMain, argc, argv, init, fini, loader, stack);
}

}  // extern "C"
