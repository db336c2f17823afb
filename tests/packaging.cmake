# Checks that the man page and the completion agree with the program's --help.
add_test(NAME Packaging.PagesHoldEveryOption
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/packaging/pages.sh $<TARGET_FILE:shiftrt> ${CMAKE_BINARY_DIR}/packaging)
set_tests_properties(Packaging.PagesHoldEveryOption PROPERTIES LABELS static)

# The container's recipe, and one with faults of every kind, which must all be found.
add_test(NAME Packaging.DockerfileIsRight
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/packaging/dockerfile.sh packaging/Dockerfile ${PROJECT_SOURCE_DIR})
add_test(NAME Packaging.FaultsOfADockerfileAreFound
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/packaging/dockerfile.sh tests/packaging/Dockerfile.wrong ${PROJECT_SOURCE_DIR})
set(faults "")
foreach(fault 1:.the.image.debian.names 2:.unknown.instruction.ADD 3:.there.is.no.nothing-there 4:.no.stage.two 5:.there.is.no.scripts/none
        6:.apt-get.install.without.apt-get.update 6:.apt-get.install.without.-y 6:.the.lists.of.apt-get 7:.a.stage.needs.a.name
        7:.the.stage.one.has.no.ENTRYPOINT 8:.the.cache.of.pip 9:.ENTRYPOINT.is.no.JSON.list)
  string(APPEND faults "tests/packaging/Dockerfile.wrong:${fault}[^\n]*\n")
endforeach()
set_tests_properties(Packaging.FaultsOfADockerfileAreFound PROPERTIES PASS_REGULAR_EXPRESSION "${faults}")
set_tests_properties(Packaging.DockerfileIsRight Packaging.FaultsOfADockerfileAreFound PROPERTIES LABELS static)
