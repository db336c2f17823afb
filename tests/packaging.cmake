# Checks that the man page and the completion agree with the program's --help.
add_test(NAME Packaging.PagesHoldEveryOption
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/packaging/pages.sh $<TARGET_FILE:shiftrt> ${CMAKE_BINARY_DIR}/packaging)
set_tests_properties(Packaging.PagesHoldEveryOption PROPERTIES LABELS static)
