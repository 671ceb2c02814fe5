# libnuma: its header and library, given or found on the system.

function(selftest_find_numa)
  find_path(NUMA_INCLUDE_DIR numa.h DOC "The folder that holds numa.h")
  find_library(NUMA_LIBRARY numa DOC "libnuma.so")
  if(NOT NUMA_INCLUDE_DIR OR NOT NUMA_LIBRARY OR NOT EXISTS "${NUMA_INCLUDE_DIR}/numa.h" OR NOT EXISTS "${NUMA_LIBRARY}")
    message(FATAL_ERROR "libnuma is missing (header folder: '${NUMA_INCLUDE_DIR}', library: '${NUMA_LIBRARY}'). "
      "Install libnuma-dev (Debian, Ubuntu) or numactl-devel (Fedora, RHEL), "
      "or give both: -DNUMA_INCLUDE_DIR=... -DNUMA_LIBRARY=.../libnuma.so")
  endif()
  add_library(selftest_numa INTERFACE)
  target_include_directories(selftest_numa SYSTEM INTERFACE "${NUMA_INCLUDE_DIR}")
  target_link_libraries(selftest_numa INTERFACE "${NUMA_LIBRARY}")
endfunction()
