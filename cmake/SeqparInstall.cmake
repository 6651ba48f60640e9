# Install rules of `cmake --install`, by component: `runtime` (the libraries), `development` (headers, the CMake
# package, pkg-config files, examples, documents), `tools` (seqpar_info, mesh_schedule, the perf binaries, their man
# pages) and `python`. The installed tree is relocatable: all paths in it are relative.
include(CMakePackageConfigHelpers)

set(seqpar_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/seqpar)
# In /usr the loader finds libraries without an rpath, as distributions require.
set(seqpar_in_usr FALSE)
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(seqpar_in_usr TRUE)
endif()

# --- Libraries ---
set_target_properties(seqpar_attn PROPERTIES EXPORT_NAME attn)
if(NOT seqpar_in_usr)
  set_target_properties(seqpar_attn PROPERTIES INSTALL_RPATH "$ORIGIN")
endif()
set(seqpar_namelink NAMELINK_COMPONENT development)
if(SKBUILD)  # a wheel has no links
  set(seqpar_namelink NAMELINK_SKIP)
endif()
install(TARGETS seqpar seqpar_attn EXPORT seqparTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime ${seqpar_namelink}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# --- Development files ---
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/seqpar DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
        FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")

install(EXPORT seqparTargets NAMESPACE seqpar:: DESTINATION ${seqpar_package_dir} COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/seqparConfig.cmake.in ${PROJECT_BINARY_DIR}/seqparConfig.cmake
                              INSTALL_DESTINATION ${seqpar_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/seqparConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/seqparConfig.cmake ${PROJECT_BINARY_DIR}/seqparConfigVersion.cmake
        DESTINATION ${seqpar_package_dir} COMPONENT development)

# The .pc files compute their prefix from their location.
file(RELATIVE_PATH seqpar_pc_up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
cmake_path(SET seqpar_pc_prefix NORMALIZE "${seqpar_pc_up}/.")
foreach(pc seqpar seqpar_attn)
  set(seqpar_pc_link "-l${pc}")
  if(SKBUILD)  # no link without the version, and in no folder that the loader searches
    set(seqpar_pc_link "-l:lib${pc}.so.${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} -Wl,-rpath,\${libdir}")
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${pc}.pc.in ${PROJECT_BINARY_DIR}/${pc}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${pc}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endforeach()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development
        FILES_MATCHING PATTERN "*.c" PATTERN "*.cpp" PATTERN "*.cu" PATTERN "*.h" PATTERN "*.py" PATTERN "*.md"
        PATTERN "__pycache__" EXCLUDE)
# The pages that headers, errors and examples name, with the relative paths of the sources.
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/SECURITY.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "reference" EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/perf/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/perf COMPONENT development)

# --- Programs ---
# seqpar_install_program(TARGET NAME SUMMARY): installs TARGET as NAME, with a man page generated from its --help.
find_program(SEQPAR_HELP2MAN help2man)
if(NOT SEQPAR_HELP2MAN)
  message(STATUS "seqpar: no help2man: man pages are not installed")
endif()
file(RELATIVE_PATH seqpar_lib_from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
function(seqpar_install_program target name summary)
  if(NOT TARGET ${target})
    return()
  endif()
  if(NOT seqpar_in_usr)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/${seqpar_lib_from_bin}")
  endif()
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  if(NOT target STREQUAL name)
    install(CODE "set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
file(RENAME \"\${folder}/${target}\" \"\${folder}/${name}\")
list(TRANSFORM CMAKE_INSTALL_MANIFEST_FILES REPLACE \"/${target}\$\" \"/${name}\")" COMPONENT tools)
  endif()
  if(SEQPAR_HELP2MAN)
    set(page ${PROJECT_BINARY_DIR}/man/${name}.1.gz)
    add_custom_command(OUTPUT ${page} VERBATIM
      COMMAND ${PROJECT_SOURCE_DIR}/cmake/man_page.sh ${SEQPAR_HELP2MAN} $<TARGET_FILE:${target}> ${name} ${PROJECT_VERSION}
              ${summary} ${page}
      DEPENDS ${target} ${PROJECT_SOURCE_DIR}/cmake/man_page.sh)
    set_property(GLOBAL APPEND PROPERTY SEQPAR_MAN_PAGES ${page})
    install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
  endif()
endfunction()

seqpar_install_program(seqpar_info seqpar_info "show what seqpar sees of its ranks and what it would choose")
seqpar_install_program(mesh_schedule mesh_schedule "print a schedule of Mesh-Attention")
seqpar_install_program(seqpar_sim seqpar_sim "predict sequence parallelism on other machines")
if(TARGET seqpar_sim)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/tools/sim/machines DESTINATION ${CMAKE_INSTALL_DATADIR}/seqpar COMPONENT tools
          FILES_MATCHING PATTERN "*.json")
endif()
seqpar_install_program(all_scan_perf seqpar_all_scan_perf "measure seqpar's All-Scan")
seqpar_install_program(alltoall_perf seqpar_alltoall_perf "measure exchanges of heads and sequence")
seqpar_install_program(gather_perf seqpar_gather_perf "measure seqpar's all-gather and reduce-scatter")
seqpar_install_program(halo_perf seqpar_halo_perf "measure halos and their adjoint")
seqpar_install_program(linear_attn_perf seqpar_linear_attn_perf "measure sequence-parallel linear attention")
seqpar_install_program(merge_perf seqpar_merge_perf "measure merges of partial attention")
seqpar_install_program(seqpar_measure seqpar_measure "measure a machine file of seqpar_sim")
seqpar_install_program(mesh_perf seqpar_mesh_perf "measure the movements of Mesh-Attention")
seqpar_install_program(redistribute_perf seqpar_redistribute_perf "measure changes of a sequence's layout")
seqpar_install_program(ring_perf seqpar_ring_perf "measure rings, alone and beside computation")
seqpar_install_program(sendrecv_perf seqpar_sendrecv_perf "measure send and receive between neighbors")
seqpar_install_program(softmax_attn_perf seqpar_softmax_attn_perf "measure sequence-parallel softmax attention")
get_property(seqpar_man_pages GLOBAL PROPERTY SEQPAR_MAN_PAGES)
add_custom_target(seqpar_man ALL DEPENDS ${seqpar_man_pages})

# --- Python ---
if(SEQPAR_PYTHON AND NOT SKBUILD)  # of a wheel, scikit-build-core takes it from the sources
  set(seqpar_python_dir ${CMAKE_INSTALL_LIBDIR}/seqpar/python)
  if(seqpar_in_usr)
    set(seqpar_python_dir lib/python3/dist-packages)
  endif()
  set(SEQPAR_PYTHON_INSTALL_DIR ${seqpar_python_dir} CACHE STRING "Folder that gets the Python package")
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/seqpar DESTINATION ${SEQPAR_PYTHON_INSTALL_DIR} COMPONENT python
          FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed" PATTERN "handlers.cpp" PATTERN "order.h" PATTERN "__pycache__" EXCLUDE)
endif()

if(seqpar_in_usr)
  include(SeqparDebian)
endif()
