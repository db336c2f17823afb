# Runs scripts/check-house on the repository, and on a small tree with deliberate violations, all of which must be found.
foreach(rule includes tests paths names environment messages comments licences)
  add_test(NAME House.${rule} COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-house ${rule})
  set_tests_properties(House.${rule} PROPERTIES LABELS static)
endforeach()
add_test(NAME House.BreachesAreFound
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/seeded.sh ${PROJECT_SOURCE_DIR}/scripts/check-house)
set_tests_properties(House.BreachesAreFound PROPERTIES LABELS static)
