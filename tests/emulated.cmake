# Runs the GPU kernels on the CPU (kernels/emulated/machine.h). Boost.Context provides the fibers; only these tests use it.
find_library(SHIFTRT_BOOST_CONTEXT NAMES boost_context REQUIRED)
add_library(shiftrt_emulator STATIC ${PROJECT_SOURCE_DIR}/kernels/emulated/global_memory.cc
                                    ${PROJECT_SOURCE_DIR}/kernels/emulated/machine.cc
                                    ${PROJECT_SOURCE_DIR}/kernels/emulated/tile_memory.cc)
target_compile_definitions(shiftrt_emulator PUBLIC SHIFTRT_EMULATED)
target_include_directories(shiftrt_emulator PUBLIC ${PROJECT_SOURCE_DIR})
set_target_properties(shiftrt_emulator PROPERTIES UNITY_BUILD OFF)
target_link_libraries(shiftrt_emulator PUBLIC shiftrt_runtime ${SHIFTRT_BOOST_CONTEXT} PRIVATE shiftrt_options)

shiftrt_test(emu SOURCES emulated/cluster_test.cc emulated/gpu_targets_test.cc ${PROJECT_SOURCE_DIR}/bench/gpu_targets.cc emulated/machine_test.cc emulated/tiles_test.cc ${PROJECT_SOURCE_DIR}/kernels/cuda/refuse.cc
             DEPENDS shiftrt_emulator)
target_include_directories(test_emu PRIVATE ${PROJECT_SOURCE_DIR}/include)  # the targets of the bench name models

# The whole CUDA backend on the emulator. It is a set of objects, not an archive, so that it replaces the real backend in
# every program into which it is linked.
set(emulated communicator.cc dense.cc matmul.cc runtime.cc)
list(TRANSFORM emulated PREPEND ${PROJECT_SOURCE_DIR}/kernels/emulated/)
add_library(shiftrt_emulated_cuda OBJECT ${SHIFTRT_CUDA_KERNELS} ${SHIFTRT_HOPPER_KERNELS} ${SHIFTRT_CUDA_RUNTIME} ${emulated})
set_source_files_properties(${SHIFTRT_CUDA_KERNELS} ${SHIFTRT_HOPPER_KERNELS} PROPERTIES LANGUAGE CXX)
set_target_properties(shiftrt_emulated_cuda PROPERTIES UNITY_BUILD OFF)  # nvcc, too, compiles kernels one by one
target_compile_options(shiftrt_emulated_cuda PRIVATE -Wno-unknown-pragmas)  # `unroll` is a pragma of nvcc
target_link_libraries(shiftrt_emulated_cuda PUBLIC shiftrt_emulator PRIVATE shiftrt_options)

# The same tests run for every kernel on the emulator and, if the backend is built, on a GPU (skipped without one).
set(cuda_tests cuda/attention_test.cc cuda/experts_test.cc cuda/gated_delta_test.cc cuda/gated_product_test.cc cuda/gram_test.cc cuda/lra_test.cc cuda/matvec_test.cc cuda/quantised_test.cc cuda/rope_test.cc
               cuda/sample_test.cc cuda/scores_test.cc cuda/solver_test.cc cuda/upload_test.cc)
shiftrt_test(emulated_kernels SOURCES ${cuda_tests} emulated/launch_graph_test.cc emulated/attention_costs_test.cc emulated/matvec_costs_test.cc
             emulated/sample_costs_test.cc DEPENDS shiftrt_emulated_cuda shiftrt_engine)
# The kernels of gradients.
set(cuda_gradient_tests cuda/adamw_test.cc cuda/attention_gradient_test.cc cuda/gated_delta_gradient_test.cc cuda/head_loss_test.cc cuda/products_test.cc
                        cuda/norm_test.cc cuda/rowwise_test.cc)
shiftrt_test(emulated_gradient_kernels SOURCES ${cuda_gradient_tests} DEPENDS shiftrt_emulated_cuda shiftrt_engine)
if(SHIFTRT_HAVE_CUDA)
  shiftrt_test(cuda_kernels SOURCES ${cuda_tests} ${cuda_gradient_tests} DEPENDS shiftrt_cuda_kernels shiftrt_engine)
endif()

# The decoder with emulated kernels, compared with the decoder on the CPU, and the method on that decoder.
add_library(shiftrt_emulated_engine OBJECT ${SHIFTRT_CUDA_ENGINE})
set_target_properties(shiftrt_emulated_engine PROPERTIES UNITY_BUILD OFF)
target_link_libraries(shiftrt_emulated_engine PUBLIC shiftrt_emulated_cuda shiftrt_engine PRIVATE shiftrt_options)
shiftrt_test(emulated_model SOURCES cuda/model_test.cc cuda/together_test.cc emulated/gated_product_costs_test.cc emulated/many_tokens_costs_test.cc emulated/transfers_test.cc DEPENDS shiftrt_emulated_engine shiftrt_emulated_cuda shiftrt_eval)
# Again on an emulated device of compute capability 9.0, which has kernels of its own.
function(shiftrt_emulated_hopper_test target filter)
  add_test(NAME EmulatedHopper.${target} COMMAND test_${target} --gtest_filter=${filter})
  set_tests_properties(EmulatedHopper.${target} PROPERTIES ENVIRONMENT "SHIFTRT_EMULATED_CAPABILITY=9;CUDA_VISIBLE_DEVICES=" LABELS emulated)
endfunction()
shiftrt_emulated_hopper_test(emulated_model ModelOnGpu.PrefillAndDecode*:ModelOnGpu.PackedSequences*:ModelOnGpu.Branches*:ModelOnGpu.AdaptersOfEvery*:ModelOnGpu.MlpsOfOther*:TogetherOnGpu.StepsOfRepaired*)
shiftrt_test(emulated_gradients SOURCES cuda/finetune_test.cc cuda/gradients_test.cc emulated/gradient_costs_test.cc emulated/rounded_test.cc DEPENDS shiftrt_emulated_engine shiftrt_emulated_cuda shiftrt_train)
shiftrt_emulated_hopper_test(emulated_gradients GradientsOnGpu.OfLora*:GradientsOnGpu.StepsAndSums*)
shiftrt_test(emulated_calibration SOURCES cuda/calibration_test.cc cuda/devices_test.cc emulated/fit_costs_test.cc emulated/memory_test.cc DEPENDS shiftrt_emulated_engine shiftrt_emulated_cuda shiftrt_shift)
find_package(CLI11 REQUIRED)
shiftrt_test(emulated_options SOURCES emulated/options_test.cc emulated/turns_test.cc ${PROJECT_SOURCE_DIR}/tools/gpus.cc ${PROJECT_SOURCE_DIR}/tools/options.cc ${PROJECT_SOURCE_DIR}/tools/outputs.cc
             ${PROJECT_SOURCE_DIR}/tools/progress_bar.cc
             ${PROJECT_SOURCE_DIR}/tools/pulling.cc ${PROJECT_SOURCE_DIR}/tools/splitting.cc ${PROJECT_SOURCE_DIR}/tools/standard_output.cc ${PROJECT_SOURCE_DIR}/tools/table.cc
             DEPENDS shiftrt_emulated_engine shiftrt_emulated_cuda shiftrt_api CLI11::CLI11 nlohmann_json::nlohmann_json)

# The whole program with emulated devices, as many as SHIFTRT_EMULATED_DEVICES says, for several processes.
add_executable(shiftrt_emulated ${PROJECT_SOURCE_DIR}/tools/main.cc)
target_link_libraries(shiftrt_emulated PRIVATE shiftrt_commands shiftrt_emulated_engine shiftrt_emulated_cuda shiftrt_options)
add_executable(emulated_worker emulated/worker.cc)
target_link_libraries(emulated_worker PRIVATE shiftrt_commands shiftrt_emulated_engine shiftrt_emulated_cuda shiftrt_options GTest::gtest)
shiftrt_test(emulated_processes SOURCES emulated/processes_test.cc DEPENDS shiftrt_engine nlohmann_json::nlohmann_json)
target_compile_definitions(test_emulated_processes PRIVATE SHIFTRT_TOOL="$<TARGET_FILE:shiftrt_emulated>"
                           SHIFTRT_WORKER="$<TARGET_FILE:emulated_worker>")
add_dependencies(test_emulated_processes shiftrt_emulated emulated_worker)
if(SHIFTRT_HAVE_CUDA)
  shiftrt_test(cuda_model SOURCES cuda/finetune_test.cc cuda/gradients_test.cc cuda/model_test.cc cuda/together_test.cc DEPENDS shiftrt_eval shiftrt_train)
  shiftrt_test(cuda_calibration SOURCES cuda/calibration_test.cc cuda/devices_test.cc DEPENDS shiftrt_shift)
endif()

if(SHIFTRT_HAVE_CUDA)
  add_test(NAME Ptxas.LeavesProductsOfWarpgroupsAsTheyAre
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cuda/ptxas.sh ${CMAKE_CUDA_COMPILER} ${SHIFTRT_HOPPER_KERNELS})
  set_tests_properties(Ptxas.LeavesProductsOfWarpgroupsAsTheyAre PROPERTIES LABELS static)
  # Tests what a launch asks of the CUDA runtime, without a GPU. The archive is linked without its dependencies, because the
  # test stands for the runtime.
  shiftrt_test(launch SOURCES cuda/launch_test.cc DEPENDS $<TARGET_FILE:shiftrt_cuda_kernels> shiftrt_runtime)
  target_include_directories(test_launch SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  add_dependencies(test_launch shiftrt_cuda_kernels)
endif()

# Checks that the table of docs/dev/gpu.md matches the committed reports.
find_package(Python3 COMPONENTS Interpreter)
# The machine code of the kernels that decode a token.
if(SHIFTRT_HAVE_CUDA AND Python3_FOUND)
  set(decoding ${SHIFTRT_CUDA_KERNELS} ${SHIFTRT_HOPPER_KERNELS})
  list(FILTER decoding INCLUDE REGEX "/(lra|lra_cluster|matvec)\\.cu$")
  add_test(NAME MachineCode.LoadsComeBeforeTheMultiplyAdds
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/machine_code.py ${CMAKE_CUDA_COMPILER} ${decoding})
  set_tests_properties(MachineCode.LoadsComeBeforeTheMultiplyAdds PROPERTIES SKIP_RETURN_CODE 77 LABELS static)
  set(decoding ${SHIFTRT_CUDA_KERNELS})
  list(FILTER decoding INCLUDE REGEX "/matvec(_blocks)?\\.cu$")
  add_test(NAME Ptxas.AsManyBlocksOfAProductFitAsItsGridHas
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/residency.py ${CMAKE_CUDA_COMPILER} ${decoding})
  set_tests_properties(Ptxas.AsManyBlocksOfAProductFitAsItsGridHas PROPERTIES LABELS static)
endif()
if(Python3_FOUND)
  add_test(NAME Docs.TheGpuTableIsThatOfTheReports
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/gpu-table --check)
  set_tests_properties(Docs.TheGpuTableIsThatOfTheReports PROPERTIES LABELS static)
endif()

# The script that runs on the GPU machine, with stubs of our programs.
if(Python3_FOUND)
  add_test(NAME GpuRun.RunsEverythingInOrderAndInTime
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/gpu_run_test.py ${CMAKE_BINARY_DIR}/gpu-run)
  set_tests_properties(GpuRun.RunsEverythingInOrderAndInTime PROPERTIES LABELS static)
  add_test(NAME GpuRun.TheRivalsRunOnACpu
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/gpu_rivals_test.py ${CMAKE_BINARY_DIR}/gpu-rivals)
  set_tests_properties(GpuRun.TheRivalsRunOnACpu PROPERTIES SKIP_RETURN_CODE 77 LABELS static)
endif()

# The archive that carries the tests to a GPU, as far as it goes without one. It packs what this build holds.
if(SHIFTRT_HAVE_CUDA AND Python3_FOUND)
  add_test(NAME GpuPackage.StartsInABareRootDirectoryAndKeepsWhatIsDone
    COMMAND ${PROJECT_SOURCE_DIR}/tests/gpu_package.sh ${CMAKE_BINARY_DIR} ${CMAKE_BINARY_DIR}/gpu-package)
  set_tests_properties(GpuPackage.StartsInABareRootDirectoryAndKeepsWhatIsDone PROPERTIES SKIP_RETURN_CODE 77 LABELS slow)
endif()
