// SPDX-License-Identifier: Apache-2.0
#include "runtime/launcher.h"

#include <array>
#include <cstdlib>
#include <string_view>

#include "runtime/mpi/link.h"

namespace shiftrt {

namespace {

std::optional<int> Number(const char* text) {
  if (text == nullptr) return {};
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || number < 1) return {};
  return static_cast<int>(number);
}

}  // namespace

std::optional<Launch> FindLaunch(const std::function<const char*(const char*)>& environment) {
  std::optional<MpiKind> wanted;
  if (const char* name = environment("SHIFTRT_MPI")) {
    if (name != std::string_view("openmpi") && name != std::string_view("mpich"))
      FailUsage("SHIFTRT_MPI is \"{}\"; known: openmpi, mpich", name);
    wanted = name == std::string_view("openmpi") ? MpiKind::kOpenMpi : MpiKind::kMpich;
  }
  // Variables with the number of processes, or with the rank if the launcher does not say the number, and the MPI
  // library that belongs to the launcher.
  struct Row {
    const char* variable;
    bool has_size;
    std::optional<MpiKind> mpi;
  };
  constexpr std::array<Row, 4> kRows = {{
      {"OMPI_COMM_WORLD_SIZE", true, MpiKind::kOpenMpi},  // mpirun of OpenMPI
      {"PMI_SIZE", true, MpiKind::kMpich},                // mpirun of MPICH; srun --mpi=pmi2
      {"PMIX_RANK", false, MpiKind::kOpenMpi},            // srun --mpi=pmix; prterun
      {"SLURM_STEP_NUM_TASKS", true, {}},                 // srun --mpi=none
  }};
  for (const Row& row : kRows) {
    const char* value = environment(row.variable);
    if (value == nullptr) continue;
    Launch launch{row.variable, row.has_size ? Number(value) : Number(environment("SLURM_STEP_NUM_TASKS")), row.mpi};
    if (wanted && launch.mpi) launch.mpi = wanted;
    return launch;
  }
  return {};
}

std::shared_ptr<Processes> JoinProcesses() {
  const std::optional<Launch> launch = FindLaunch([](const char* name) { return std::getenv(name); });
  if (!launch || launch->size == 1) return OneProcess();
  if (!launch->mpi)
    FailUsage(
        "{}={}: srun has started several tasks that cannot find each other. Start them with srun --mpi=pmix (OpenMPI) "
        "or --mpi=pmi2 (MPICH), or one task alone",
        launch->variable, launch->size.value_or(0));
  const auto silence = Number(std::getenv("SHIFTRT_PEER_TIMEOUT")).value_or(60);
  std::unique_ptr<Link> link = MakeMpiLink(*launch->mpi, std::chrono::seconds(silence));
  Check(!launch->size || link->size() == *launch->size,
        "{}={}, but the MPI library that was loaded counts {} processes: the launcher belongs to another "
        "implementation. SHIFTRT_MPI=openmpi or SHIFTRT_MPI=mpich names the one to load",
        launch->variable, launch->size.value_or(0), link->size());
  if (link->size() == 1) return OneProcess();
  return std::make_shared<Processes>(std::move(link));
}

}  // namespace shiftrt
