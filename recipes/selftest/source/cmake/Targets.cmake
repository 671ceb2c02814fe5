# Which kernels are compiled for which targets. A feature's source is compiled for the targets that have the feature and
# for no other, so the library never holds a kernel whose body is only a trap.

# Reads SM120_CUDA_ARCHS ("90a;120a", also with commas or spaces) into the list `out`.
function(selftest_read_targets given out)
  string(REGEX REPLACE "[, ]+" ";" list "${given}")
  list(REMOVE_ITEM list "")
  if(NOT list)
    message(FATAL_ERROR "SM120_CUDA_ARCHS is empty: say which GPUs this build is for, "
      "e.g. -DSM120_CUDA_ARCHS=120a (RTX 50 series), 121a (DGX Spark), 120f (both) or 90a (Hopper).")
  endif()
  foreach(target IN LISTS list)
    if(NOT target MATCHES "^[1-9][0-9]+[af]?$")
      message(FATAL_ERROR "SM120_CUDA_ARCHS: '${target}' is no CUDA target; write it as 120a, without dot or sm_.")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES list)
  set(${out} "${list}" PARENT_SCOPE)
  list(TRANSFORM list PREPEND "sm_" OUTPUT_VARIABLE named)
  list(JOIN named ", " SELFTEST_TARGETS_TEXT)
  set(SELFTEST_TARGETS_TEXT "${SELFTEST_TARGETS_TEXT}" PARENT_SCOPE)
endfunction()

# Adds one feature: its source to SELFTEST_KERNEL_SOURCES with its own -gencode options where any of `targets` has it;
# always a line of C++ and of JSON for selftest_write_build_info.
function(selftest_feature name source having words)
  set(mine ${targets})
  list(FILTER mine INCLUDE REGEX "${having}")
  set(compiled 0)
  if(mine)
    set(compiled 1)
    set(options "")
    foreach(target IN LISTS mine)
      list(APPEND options "-gencode=arch=compute_${target},code=sm_${target}")
    endforeach()
    # The seed replaces one that nvcc derives from the path of the file, in the names of its internal symbols.
    set_source_files_properties(csrc/${source} PROPERTIES COMPILE_OPTIONS "${options};-frandom-seed=${source}")
    set(SELFTEST_KERNEL_SOURCES ${SELFTEST_KERNEL_SOURCES} csrc/${source} PARENT_SCOPE)
  endif()
  list(TRANSFORM mine PREPEND "sm_")
  list(JOIN mine ", " text)
  list(JOIN mine "\", \"" json)
  if(mine)
    set(json "\"${json}\"")
  endif()
  string(TOUPPER "${name}" upper)
  set(SELFTEST_HAS "${SELFTEST_HAS}#define SELFTEST_HAS_${upper} ${compiled}\n" PARENT_SCOPE)
  set(SELFTEST_FEATURE_ROWS
    "${SELFTEST_FEATURE_ROWS}    {\"${name}\", \"${text}\", \"${words}\"},\n" PARENT_SCOPE)
  if(SELFTEST_FEATURE_JSON)
    set(SELFTEST_FEATURE_JSON "${SELFTEST_FEATURE_JSON},\n")
  endif()
  set(SELFTEST_FEATURE_JSON
    "${SELFTEST_FEATURE_JSON}    \"${name}\": {\"compiled_for\": [${json}], \"needs\": \"${words}\"}" PARENT_SCOPE)
endfunction()

# Writes build_info.json (installed beside the library, so that it can be read where the library does not load) and
# build_config.h (the same text, and the table that the operators check before a launch) into `folder`.
function(selftest_write_build_info folder)
  string(REPLACE ", " "\", \"" archs "\"${SELFTEST_TARGETS_TEXT}\"")
  string(CONCAT SELFTEST_BUILD_INFO
    "{\n  \"package\": \"sm120-selftest\",\n  \"archs\": [${archs}],\n"
    "  \"cuda\": \"${CMAKE_CUDA_COMPILER_VERSION}\",\n  \"torch\": \"${SELFTEST_TORCH_VERSION}\",\n"
    "  \"features\": {\n${SELFTEST_FEATURE_JSON}\n  }\n}\n")
  file(CONFIGURE OUTPUT "${folder}/build_info.json" CONTENT "@SELFTEST_BUILD_INFO@" @ONLY)
  file(CONFIGURE OUTPUT "${folder}/build_config.h" @ONLY CONTENT
"// Written by CMake. What this build holds, and for which targets.
#pragma once
@SELFTEST_HAS@
namespace selftest {
struct Feature {
  const char* name;
  const char* compiled_for;  // \"sm_90a, sm_120a\"; empty where no target of the build has the feature
  const char* needs;         // in words
};
inline constexpr Feature kFeatures[] = {
@SELFTEST_FEATURE_ROWS@};
inline constexpr char kTargets[] = \"@SELFTEST_TARGETS_TEXT@\";
inline constexpr char kBuildInfo[] = R\"json(@SELFTEST_BUILD_INFO@)json\";
}  // namespace selftest
")
endfunction()
