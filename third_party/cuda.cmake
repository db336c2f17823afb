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
  # NCCL has no CMake package. Found, calibration can take several GPUs; the library is loaded when it does.
  find_path(SHIFTRT_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  message(STATUS "NCCL: ${SHIFTRT_NCCL_INCLUDE}")
  # CMake 3.25 does not know nvcc's C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(SHIFTRT_CUDA_FLAGS --expt-relaxed-constexpr --compress-mode=size --threads=2)
  if(SHIFTRT_WERROR)
    list(APPEND SHIFTRT_CUDA_FLAGS --Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror)
  endif()
  list(TRANSFORM SHIFTRT_CUDA_FLAGS REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CUDA>:\\1>")
endif()
