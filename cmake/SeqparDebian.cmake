# Debian packages by CPack, in a build that is configured for /usr: `cmake --preset debian`, then cpack in its folder.
# Package names of the libraries contain the interface version, so that several versions can be installed.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME seqpar)
set(CPACK_PACKAGE_VENDOR seqpar)
set(SEQPAR_PACKAGE_CONTACT "seqpar maintainers <packages@seqpar.invalid>" CACHE STRING "Maintainer that the packages name")
set(CPACK_PACKAGE_CONTACT ${SEQPAR_PACKAGE_CONTACT})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development tools python)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(library_package libseqpar${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

# seqpar_deb(COMPONENT PACKAGE SECTION SYNOPSIS TEXT): the fields of every package. CPack joins lists by "; ".
macro(seqpar_deb component package section synopsis text)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${synopsis}\n${text}")
  set(seqpar_doc ${CMAKE_INSTALL_DATADIR}/doc/${package})
  install(FILES ${PROJECT_SOURCE_DIR}/packaging/debian/copyright ${PROJECT_BINARY_DIR}/debian/changelog.gz
          DESTINATION ${seqpar_doc} COMPONENT ${component})
endmacro()

set(about "seqpar computes softmax and linear attention over a sequence that is cut across\nranks, and moves what that takes: states of linear attention (All-Scan), heads\nand sequence (Ulysses), rings of keys and values, halos and layouts, between\nprocesses, threads and GPUs.")
seqpar_deb(runtime ${library_package} libs "collective communication for sequence parallelism"
           "${about}\n\nThis package has the libraries. UCX is used where ranks of several hosts talk,\nNCCL between GPUs of several hosts; both are opened where needed.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS "libucx0")

seqpar_deb(development libseqpar-dev libdevel "collective communication for sequence parallelism: headers"
           "${about}\n\nThis package has headers, a CMake package, pkg-config files, examples and\ndocuments.")
set(CPACK_COMPONENT_DEVELOPMENT_DEPENDS runtime)

seqpar_deb(tools seqpar-tools utils "collective communication for sequence parallelism: programs"
           "${about}\n\nThis package has seqpar_info, which shows what the library sees of its ranks\nand would choose for them, and a benchmark a collective.")
set(CPACK_COMPONENT_TOOLS_DEPENDS runtime)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/src ${PROJECT_BINARY_DIR}/src/attn)

seqpar_deb(python python3-seqpar python "collective communication for sequence parallelism: Python"
           "${about}\n\nThis package has the Python interface, for numpy, PyTorch and JAX.")
set(CPACK_COMPONENT_PYTHON_DEPENDS runtime)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.9)")
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS "python3-numpy")

# The changelog that Debian requires, with the date of the sources.
execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} log -1 --format=%cD OUTPUT_VARIABLE seqpar_changelog_date
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT seqpar_changelog_date)
  string(TIMESTAMP seqpar_changelog_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
endif()
configure_file(${PROJECT_SOURCE_DIR}/packaging/debian/changelog.in ${PROJECT_BINARY_DIR}/debian/changelog @ONLY)
execute_process(COMMAND gzip -9nkf ${PROJECT_BINARY_DIR}/debian/changelog COMMAND_ERROR_IS_FATAL ANY)

set(CPACK_POST_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian/ldconfig_trigger.cmake)
include(CPack)
