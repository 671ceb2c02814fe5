// Whether this build has machine code of a feature for a GPU, asked before the first launch.
#pragma once

#include <string>
#include <string_view>

namespace selftest {

struct Capability {
  int major;
  int minor;
};

// Whether a GPU executes code of `target` ("sm_120a"): plain code runs on the same major with an equal or higher minor;
// "a" on exactly its own GPU; "f" on its family, which is the same major with an equal or higher minor.
bool runs_on(std::string_view target, Capability gpu);

// Empty where `feature` can be launched on `gpu`; otherwise "not on this target (built for ...; needs ...)".
std::string why_not(std::string_view feature, Capability gpu);

}  // namespace selftest
