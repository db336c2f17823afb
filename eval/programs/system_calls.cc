// SPDX-License-Identifier: Apache-2.0
#include "eval/programs/system_calls.h"

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace shiftrt {

namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

// Numbers that are the same on all processors and that older headers lack.
constexpr uint32_t kClone3 = 435, kPidfdSendSignal = 424, kPidfdOpen = 434, kPidfdGetfd = 438, kIoUringSetup = 425,
                   kIoUringEnter = 426, kIoUringRegister = 427, kOpenTree = 428, kMoveMount = 429, kFsOpen = 430,
                   kFsMount = 432, kFsPick = 433, kProcessMadvise = 440, kMountSetattr = 442, kFchmodat2 = 452;
constexpr uint32_t kX32 = 0x40000000;  // the bit of the numbers of x32

constexpr uint32_t kRefused[] = {
#ifdef SYS_fork
    SYS_fork,
    SYS_vfork,
#endif
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    kIoUringSetup,
    kIoUringEnter,
    kIoUringRegister,
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    kPidfdSendSignal,
    kPidfdOpen,
    kPidfdGetfd,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    kProcessMadvise,
    SYS_kcmp,
    SYS_setpriority,
    SYS_sched_setaffinity,
    SYS_sched_setscheduler,
    SYS_sched_setparam,
    SYS_sched_setattr,
    SYS_ioprio_set,
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    kOpenTree,
    kMoveMount,
    kFsOpen,
    kFsMount,
    kFsPick,
    kMountSetattr,
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_memfd_create,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_shmget,
    SYS_shmat,
    SYS_shmctl,
    SYS_msgget,
    SYS_msgsnd,
    SYS_msgrcv,
    SYS_msgctl,
    SYS_semget,
    SYS_semop,
    SYS_semtimedop,
    SYS_semctl,
    SYS_mq_open,
    SYS_mq_unlink,
    SYS_personality};

constexpr uint32_t kRefusedForSharedFiles[] = {
#ifdef SYS_chmod
    SYS_chmod,    SYS_chown,     SYS_lchown,    SYS_utime,       SYS_utimes,       SYS_futimesat,
#endif
    SYS_fchmod,   SYS_fchmodat,  kFchmodat2,    SYS_fchown,      SYS_fchownat,     SYS_utimensat,   SYS_truncate,
    SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr};

class Filter {
 public:
  void Load(size_t offset) { Add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  void Return(uint32_t value) { Add(BPF_RET | BPF_K, value); }
  void Refuse(int error = EPERM) { Return(SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)); }
  // The next instruction is skipped unless the loaded value compares so.
  void If(uint16_t comparison, uint32_t value) { Add(BPF_JMP | comparison | BPF_K, value, 0, 1); }
  void IfNot(uint16_t comparison, uint32_t value) { Add(BPF_JMP | comparison | BPF_K, value, 1, 0); }
  // So many of the next instructions are skipped unless the loaded value is this.
  void SkipUnless(uint32_t value, uint8_t count) { Add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, count); }
  std::vector<sock_filter> Take() { return std::move(code_); }

 private:
  void Add(uint16_t code, uint32_t value, uint8_t if_true = 0, uint8_t if_false = 0) {
    code_.push_back({code, if_true, if_false, value});
  }

  std::vector<sock_filter> code_;
};

}  // namespace

std::vector<sock_filter> SystemCallFilter(bool files_are_shared) {
  Filter filter;
  if (kArchitecture == 0) return filter.Take();
  filter.Load(offsetof(seccomp_data, arch));
  filter.IfNot(BPF_JEQ, kArchitecture);
  filter.Return(SECCOMP_RET_KILL_PROCESS);
  filter.Load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
  filter.If(BPF_JGE, kX32);
  filter.Refuse();
#endif
  // The arguments of clone3 are in memory, which a filter cannot read. Libraries then call clone.
  filter.If(BPF_JEQ, kClone3);
  filter.Refuse(ENOSYS);
  for (const uint32_t call : kRefused) {
    filter.If(BPF_JEQ, call);
    filter.Refuse();
  }
  for (const uint32_t call : kRefusedForSharedFiles) {
    if (!files_are_shared) break;
    filter.If(BPF_JEQ, call);
    filter.Refuse();
  }
  // The low half of the first argument comes first on these processors.
  constexpr size_t kFirstArgument = offsetof(seccomp_data, args);
  filter.SkipUnless(SYS_clone, 4);
  filter.Load(kFirstArgument);
  filter.If(BPF_JSET, CLONE_THREAD);
  filter.Return(SECCOMP_RET_ALLOW);
  filter.Refuse();
  filter.SkipUnless(SYS_prlimit64, 3);
  filter.Load(kFirstArgument);  // a process; 0 is the caller
  filter.IfNot(BPF_JEQ, 0);
  filter.Refuse();
  filter.Return(SECCOMP_RET_ALLOW);
  return filter.Take();
}

}  // namespace shiftrt
