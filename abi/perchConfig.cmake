# find_package(perch):
#   perch::perch     what a host links: the runtime and its headers
#   perch::backend   what a backend (a MODULE library) links: the headers, and options that leave
#                    its entry as the one exported symbol
#   perch::abi       the headers alone
# <dlpack/dlpack.h> is found in the compiler's own places, or under PERCH_DLPACK_INCLUDE_DIR.
include(${CMAKE_CURRENT_LIST_DIR}/perch-abi-targets.cmake)
find_path(PERCH_DLPACK_INCLUDE_DIR dlpack/dlpack.h)
if(NOT PERCH_DLPACK_INCLUDE_DIR)
  set(perch_FOUND FALSE)
  set(perch_NOT_FOUND_MESSAGE "dlpack/dlpack.h was not found: install libdlpack-dev, or set "
                              "PERCH_DLPACK_INCLUDE_DIR to the folder that holds dlpack/")
  return()
endif()
set_property(TARGET perch::abi APPEND PROPERTY INTERFACE_INCLUDE_DIRECTORIES
                                               ${PERCH_DLPACK_INCLUDE_DIR})
include(${CMAKE_CURRENT_LIST_DIR}/perch-targets.cmake OPTIONAL)
if(NOT TARGET perch::backend)
  add_library(perch::backend INTERFACE IMPORTED)
  set_target_properties(perch::backend PROPERTIES INTERFACE_LINK_LIBRARIES perch::abi)
  target_compile_options(perch::backend INTERFACE -fvisibility=hidden)
  target_link_options(
    perch::backend INTERFACE -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/backend.map
    -Wl,--exclude-libs,ALL -Wl,-z,nodelete)
endif()
