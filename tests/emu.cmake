# The GPU kernels, run on the CPU: tests/emu/machine.h. Boost.Context gives the fibers; nothing but these tests uses it.
find_library(SHIFTRT_BOOST_CONTEXT NAMES boost_context REQUIRED)
add_library(shiftrt_emulator STATIC emu/machine.cc)
target_compile_definitions(shiftrt_emulator PUBLIC SHIFTRT_EMULATED)
target_include_directories(shiftrt_emulator PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(shiftrt_emulator PUBLIC shiftrt_runtime ${SHIFTRT_BOOST_CONTEXT} PRIVATE shiftrt_options)

shiftrt_test(emu SOURCES emu/machine_test.cc DEPENDS shiftrt_emulator)
