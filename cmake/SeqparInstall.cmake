# What `cmake --install` puts in place: libraries, headers, the CMake package, pkg-config files, the Python package.
include(CMakePackageConfigHelpers)

set(seqpar_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/seqpar)

set_target_properties(seqpar_attn PROPERTIES EXPORT_NAME attn INSTALL_RPATH "$ORIGIN")
install(TARGETS seqpar seqpar_attn EXPORT seqparTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/seqpar DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")

install(EXPORT seqparTargets NAMESPACE seqpar:: DESTINATION ${seqpar_package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/seqparConfig.cmake.in ${PROJECT_BINARY_DIR}/seqparConfig.cmake
                              INSTALL_DESTINATION ${seqpar_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/seqparConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/seqparConfig.cmake ${PROJECT_BINARY_DIR}/seqparConfigVersion.cmake
        DESTINATION ${seqpar_package_dir})

# The .pc files find their prefix from where they lie, so that an installed tree may be moved.
file(RELATIVE_PATH seqpar_pc_up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
cmake_path(SET seqpar_pc_prefix NORMALIZE "${seqpar_pc_up}/.")
foreach(pc seqpar seqpar_attn)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${pc}.pc.in ${PROJECT_BINARY_DIR}/${pc}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${pc}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

if(SEQPAR_PYTHON)
  set(SEQPAR_PYTHON_INSTALL_DIR ${CMAKE_INSTALL_LIBDIR}/seqpar/python CACHE STRING "Folder that gets the Python package")
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/seqpar DESTINATION ${SEQPAR_PYTHON_INSTALL_DIR} FILES_MATCHING PATTERN "*.py" PATTERN "handlers.cpp")
endif()
