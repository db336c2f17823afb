// SPDX-License-Identifier: Apache-2.0
// A library to be preloaded: allocation number SHIFTRT_FAIL_MALLOC fails, counted from the beginning of main(). With
// SHIFTRT_COUNT_MALLOC=FILE the number of allocations is written to FILE at the end.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

extern "C" {

void* __libc_malloc(size_t size);

static std::atomic<long> calls = -1;  // below 0 until main() begins
static long failing = 0;              // none

void* malloc(size_t size) {
  if (calls >= 0 && ++calls == failing) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_malloc(size);
}

using Main = int (*)(int, char**, char**);
static Main program = nullptr;

static int CountedMain(int argc, char** argv, char** environment) {
  if (const char* number = std::getenv("SHIFTRT_FAIL_MALLOC")) failing = std::atol(number);
  calls = 0;
  const int status = program(argc, argv, environment);
  const long made = calls;
  calls = -1;
  if (const char* file = std::getenv("SHIFTRT_COUNT_MALLOC")) {
    const int fd = ::open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dprintf(fd, "%ld", made);
    ::close(fd);
  }
  return status;
}

int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(), void (*loader)(), void* stack) {
  program = main;
  const auto real = reinterpret_cast<decltype(&__libc_start_main)>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return real(&CountedMain, argc, argv, init, fini, loader, stack);
}

}  // extern "C"
