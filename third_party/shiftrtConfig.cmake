# Used by find_package(shiftrt): finds the dependencies as the build does, then includes the targets.
include(${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake)
find_package(CUDAToolkit QUIET)  # a build with the CUDA backend links its static runtime
include(${CMAKE_CURRENT_LIST_DIR}/shiftrtTargets.cmake)
