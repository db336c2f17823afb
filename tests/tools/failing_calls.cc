// SPDX-License-Identifier: Apache-2.0
// A library to be preloaded: one call of the C library fails. SHIFTRT_FAIL=KIND:N makes call number N of a kind fail,
// counted from the beginning of main(). With SHIFTRT_COUNT=FILE, the numbers of calls are written to FILE at the end, a
// line "KIND COUNT" each. With SHIFTRT_STARTED=FILE, main() adds a byte to FILE before anything else. With
// SHIFTRT_SERVE=FROM, the program stops at its allocation number FROM and reads numbers N from descriptor 100. For each
// it forks a child that goes on, in which call number N fails, and it writes the child's status of wait() to descriptor
// 101. The kinds of reading and writing are about regular files other than the standard streams:
//   memory       malloc, calloc, realloc or an aligned form of them returns null
//   no-memory    so do calls number N and N + 1: the program gives its reserve back, and that does not help
//   interrupt    SIGINT arrives when one of them is called, as from Ctrl-C
//   map          mmap fails with ENOMEM
//   open         open, openat and fopen fail with EIO
//   read         read and pread fail with EIO
//   short-read   read and pread return half of the bytes, which is allowed
//   end          read and pread return 0, as at the end of a file
//   write        write and pwrite fail with EIO
//   short-write  write and pwrite write half of the bytes, which is allowed
//   room         the disk is full after N written bytes
//   sync         fsync fails with EIO
//   rename       rename fails with EIO
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

enum Kind {
  kMemory,
  kNoMemory,
  kInterrupt,
  kMap,
  kOpen,
  kRead,
  kShortRead,
  kEnd,
  kWrite,
  kShortWrite,
  kRoom,
  kSync,
  kRename,
  kKinds
};
constexpr const char* kNames[kKinds] = {"memory", "no-memory", "interrupt",   "map",  "open", "read",  "short-read",
                                        "end",    "write",     "short-write", "room", "sync", "rename"};
std::atomic<bool> counting = false;
std::atomic<long> calls[kKinds];
long failing[kKinds];  // 0: none of this kind

// Counts a call, and says whether it is the one that fails.
bool Fails(Kind kind, int error) {
  if (!counting || ++calls[kind] != failing[kind]) return false;
  errno = error;
  return true;
}

long serve_from = 0;  // 0: nobody is served

// Forks a child for each number that is asked for, and returns in the child. All children write to the start of the
// standard streams, which are files.
void Serve() {
  constexpr int kNumbers = 100, kStatuses = 101;
  serve_from = 0;
  int32_t number = 0;
  while (::read(kNumbers, &number, sizeof number) == sizeof number) {
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
      if (::ftruncate(stream, 0) != 0 || ::lseek(stream, 0, SEEK_SET) != 0) ::_exit(95);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(kNumbers);
      ::close(kStatuses);
      for (long& one : failing) one = one == 0 ? 0 : number;
      return;
    }
    int status = 0;
    if (::waitpid(child, &status, 0) != child || ::write(kStatuses, &status, sizeof status) != sizeof status) break;
  }
  ::_exit(94);
}

// OpenBLAS does not look whether it got the memory for a small product, so its own allocations are left alone.
uintptr_t openblas_begin = 0, openblas_end = 0;

int FindOpenBlas(dl_phdr_info* library, size_t, void*) {
  if (std::strstr(library->dlpi_name, "openblas") == nullptr) return 0;
  openblas_begin = library->dlpi_addr;
  for (int i = 0; i < library->dlpi_phnum; ++i)
    openblas_end = std::max<uintptr_t>(
        openblas_end, library->dlpi_addr + library->dlpi_phdr[i].p_vaddr + library->dlpi_phdr[i].p_memsz);
  return 1;
}

// Counts an allocation, and says whether it may be made. SIGINT may arrive with it.
bool Allocates(const void* caller) {
  if (const auto at = reinterpret_cast<uintptr_t>(caller); at >= openblas_begin && at < openblas_end) return true;
  if (Fails(kInterrupt, 0)) std::raise(SIGINT);
  if (counting && calls[kMemory] + 1 == serve_from) Serve();
  const bool both = counting && failing[kNoMemory] != 0 && calls[kNoMemory] == failing[kNoMemory];
  return !Fails(kMemory, ENOMEM) && !Fails(kNoMemory, ENOMEM) && !both;
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
  if (const char* from = std::getenv("SHIFTRT_SERVE")) serve_from = std::atol(from);
  if (const char* file = std::getenv("SHIFTRT_STARTED")) {
    const int fd = ::open(file, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (::write(fd, "m", 1) != 1) ::_exit(96);
    ::close(fd);
  }
  ::dl_iterate_phdr(&FindOpenBlas, nullptr);
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
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) { return Allocates(__builtin_return_address(0)) ? __libc_malloc(size) : nullptr; }
void* calloc(size_t count, size_t size) {
  return Allocates(__builtin_return_address(0)) ? __libc_calloc(count, size) : nullptr;
}
void* realloc(void* old, size_t size) {
  return Allocates(__builtin_return_address(0)) ? __libc_realloc(old, size) : nullptr;
}
void* memalign(size_t alignment, size_t size) {
  return Allocates(__builtin_return_address(0)) ? __libc_memalign(alignment, size) : nullptr;
}
void* aligned_alloc(size_t alignment, size_t size) {
  return Allocates(__builtin_return_address(0)) ? __libc_memalign(alignment, size) : nullptr;
}

int posix_memalign(void** result, size_t alignment, size_t size) {
  void* const memory = Allocates(__builtin_return_address(0)) ? __libc_memalign(alignment, size) : nullptr;
  if (memory == nullptr) return ENOMEM;
  *result = memory;
  return 0;
}

void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  return Fails(kMap, ENOMEM) ? MAP_FAILED : Real<decltype(mmap)>("mmap")(at, size, protection, flags, fd, offset);
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
