# Runs scripts/check-house on the repository, and on a small tree with deliberate violations, all of which must be found.
foreach(rule includes tests paths names environment messages comments words licences readme pages)
  add_test(NAME House.${rule} COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-house ${rule})
  set_tests_properties(House.${rule} PROPERTIES LABELS static)
endforeach()
add_test(NAME House.BreachesAreFound
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/seeded.sh ${PROJECT_SOURCE_DIR}/scripts/check-house)
set_tests_properties(House.BreachesAreFound PROPERTIES LABELS static)

# Every option that the documentation names is one of the program's.
file(GLOB pages ${PROJECT_SOURCE_DIR}/*.md ${PROJECT_SOURCE_DIR}/docs/*.md
  ${PROJECT_SOURCE_DIR}/docs/dev/*.md ${PROJECT_SOURCE_DIR}/docs/results/*.md ${PROJECT_SOURCE_DIR}/models/demo/*.md)
list(FILTER pages EXCLUDE REGEX "CHANGELOG.md$")
add_test(NAME House.OptionsExist
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/options.sh $<TARGET_FILE:shiftrt> ${pages})
add_test(NAME House.UnknownOptionsAreFound
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/options.sh $<TARGET_FILE:shiftrt> ${CMAKE_CURRENT_SOURCE_DIR}/house/unknown_options.md)
set_tests_properties(House.OptionsExist House.UnknownOptionsAreFound PROPERTIES LABELS static)
set_tests_properties(House.UnknownOptionsAreFound PROPERTIES
  PASS_REGULAR_EXPRESSION ":1: no command has --nothing\n[^\n]*:6: shiftrt ppl lacks --prune\n$")

# docs/options.md has the options, values and defaults of the program.
add_test(NAME House.OptionsPage
  COMMAND ${PROJECT_SOURCE_DIR}/scripts/options-page --check $<TARGET_FILE:shiftrt>)
set_tests_properties(House.OptionsPage PROPERTIES LABELS static)

# README.md, CITATION.cff and CMakeLists.txt agree on the version and the paper.
add_test(NAME House.CitationsAgree COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/citation.sh ${PROJECT_SOURCE_DIR})
add_test(NAME House.WrongCitationsAreFound
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/citation.sh ${PROJECT_SOURCE_DIR} --seeded)
set_tests_properties(House.CitationsAgree House.WrongCitationsAreFound PROPERTIES LABELS static)
