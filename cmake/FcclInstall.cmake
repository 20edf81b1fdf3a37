# libfccl.so, the public headers, and what pkg-config and find_package(fccl) read.
include(CMakePackageConfigHelpers)
install(TARGETS fccl EXPORT fcclTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS fccl_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY transport/topologies DESTINATION ${CMAKE_INSTALL_DATADIR}/fccl FILES_MATCHING PATTERN "*.json")
install(EXPORT fcclTargets NAMESPACE fccl:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fccl)

configure_package_config_file(cmake/fcclConfig.cmake.in ${CMAKE_BINARY_DIR}/fcclConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fccl)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/fcclConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/fcclConfig.cmake ${CMAKE_BINARY_DIR}/fcclConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fccl)

# Relative, so that `cmake --install --prefix` may choose another place.
file(RELATIVE_PATH fccl_prefix_from_pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" fccl_prefix_from_pkgconfig ${fccl_prefix_from_pkgconfig})
configure_file(cmake/fccl.pc.in ${CMAKE_BINARY_DIR}/fccl.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/fccl.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
