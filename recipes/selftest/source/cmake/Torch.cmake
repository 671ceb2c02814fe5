# torch's headers and libraries, straight from its package folder.
#
# Not through TorchConfig.cmake, because that needs more than a build has: it looks for CUDA, NVRTC and cuDNN by itself
# and stops where the nvidia-* runtime wheels are absent, and it adds -gencode options of its own. Only the libraries
# whose symbols are used are linked; `import torch` brings in the rest. torch is found, never imported: its Python side
# may not load in a build environment.

function(selftest_find_torch)
  if(NOT SM120_TORCH_DIR)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c
        "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    set(SM120_TORCH_DIR "${found}")
  endif()
  foreach(file IN ITEMS version.py include/torch/library.h lib/libc10.so lib/libc10_cuda.so lib/libtorch_cpu.so)
    if(NOT EXISTS "${SM120_TORCH_DIR}/${file}")
      message(FATAL_ERROR "no torch with CUDA to build against: '${SM120_TORCH_DIR}/${file}' is missing. "
        "Install the torch wheel that this build is for into ${Python_EXECUTABLE}'s environment, "
        "or give its folder as -DSM120_TORCH_DIR=.../site-packages/torch.")
    endif()
  endforeach()
  file(STRINGS "${SM120_TORCH_DIR}/version.py" line REGEX "^__version__ *=")
  if(NOT line MATCHES "['\"](([0-9]+\\.[0-9]+)[^'\"]*)['\"]")
    message(FATAL_ERROR "cannot read torch's version from ${SM120_TORCH_DIR}/version.py")
  endif()
  set(version "${CMAKE_MATCH_1}")
  # torch's headers ask for C++20 from 2.14 on.
  if(CMAKE_MATCH_2 VERSION_GREATER_EQUAL 2.14)
    set(standard 20)
  else()
    set(standard 17)
  endif()
  message(STATUS "torch ${version} in ${SM120_TORCH_DIR}, C++${standard}")

  add_library(selftest_torch INTERFACE)
  target_include_directories(selftest_torch SYSTEM INTERFACE "${SM120_TORCH_DIR}/include")
  # torch's checks store __FILE__ of its headers too.
  target_compile_options(selftest_torch INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${SM120_TORCH_DIR}=torch>")
  target_link_libraries(selftest_torch INTERFACE
    "${SM120_TORCH_DIR}/lib/libc10.so" "${SM120_TORCH_DIR}/lib/libc10_cuda.so" "${SM120_TORCH_DIR}/lib/libtorch_cpu.so")
  set(SELFTEST_TORCH_VERSION "${version}" PARENT_SCOPE)
  set(SELFTEST_CXX_STANDARD ${standard} PARENT_SCOPE)
endfunction()
