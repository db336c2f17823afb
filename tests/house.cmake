# Rules that no compiler holds: scripts/check-house. Breaches that are put in on purpose are found.
foreach(rule includes tests paths)
  add_test(NAME House.${rule} COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-house ${rule})
  set_tests_properties(House.${rule} PROPERTIES LABELS static)
endforeach()
add_test(NAME House.BreachesAreFound
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/seeded.sh ${PROJECT_SOURCE_DIR}/scripts/check-house)
set_tests_properties(House.BreachesAreFound PROPERTIES LABELS static)
