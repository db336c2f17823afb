# Finds the CUDA toolkit, which only the CUDA backend uses. The program links nothing of it but the CUDA runtime, and that
# statically, so it starts on a machine without a driver or a GPU. Sets SHIFTRT_HAVE_CUDA.
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
  # For the GPU of this machine if there is one. Otherwise for Ampere, whose code Ada runs as well (no kernel has code of
  # its own for Ada), and for Hopper.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    execute_process(COMMAND nvidia-smi --list-gpus OUTPUT_VARIABLE gpus ERROR_QUIET RESULT_VARIABLE no_gpu)
    if(no_gpu STREQUAL "0" AND gpus MATCHES "^GPU ")
      set(CMAKE_CUDA_ARCHITECTURES native)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90)  # the last also as PTX, for later architectures
    endif()
  endif()
  enable_language(CUDA)
  message(STATUS "CUDA architectures: ${CMAKE_CUDA_ARCHITECTURES}")
  find_package(CUDAToolkit REQUIRED)
  # NCCL has no CMake package. With its header, calibration can use several GPUs; the library is loaded at run time.
  find_path(SHIFTRT_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  message(STATUS "NCCL: ${SHIFTRT_NCCL_INCLUDE}")
  # CMake 3.25 does not know the C++20 option of nvcc.
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
