# find_package(shiftrt): the dependencies, found the way the build found them, then the targets.
include(${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake)
find_package(CUDAToolkit QUIET)  # whose static runtime a build with the CUDA backend links
include(${CMAKE_CURRENT_LIST_DIR}/shiftrtTargets.cmake)
