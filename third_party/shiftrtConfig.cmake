# find_package(shiftrt): the dependencies, found the way the build found them, then the targets.
include(${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/shiftrtTargets.cmake)
