# The CUDA toolkit, for the backend alone: the program links the CUDA runtime statically and nothing else of it, so that
# it starts on a machine without driver or GPU. Sets SHIFTRT_HAVE_CUDA.
set(SHIFTRT_HAVE_CUDA OFF)
if(SHIFTRT_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(SHIFTRT_HAVE_CUDA ON)
  endif()
elseif(SHIFTRT_CUDA)
  set(SHIFTRT_HAVE_CUDA ON)
endif()
message(STATUS "CUDA backend: ${SHIFTRT_HAVE_CUDA}")

if(SHIFTRT_HAVE_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90)  # the last also as PTX, for what comes after it
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # CMake 3.25 knows no CUDA_STANDARD 20 and would drop it silently.
  set(SHIFTRT_CUDA_FLAGS -std=c++20 --expt-relaxed-constexpr --compress-mode=size --threads=2)
  if(SHIFTRT_WERROR)
    list(APPEND SHIFTRT_CUDA_FLAGS --Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror)
  endif()
endif()
