# The public interface: examples/ and tests/embed, built against an installed copy as a user would build them.
set(embed_flags "")
if(SHIFTRT_SANITIZE)
  set(embed_flags "-fsanitize=${SHIFTRT_SANITIZE}")
endif()
add_test(NAME Embed.InstalledLibraryAndItsPublicFace
  COMMAND ${CMAKE_COMMAND} -DBUILD=${CMAKE_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
          -DWORK=${CMAKE_BINARY_DIR}/embed -DMODEL=${PROJECT_SOURCE_DIR}/models/demo -DFLAGS=${embed_flags}
          -P ${CMAKE_CURRENT_SOURCE_DIR}/embed/run.cmake)
set_tests_properties(Embed.InstalledLibraryAndItsPublicFace PROPERTIES LABELS slow)
