#include "target.h"

#include "build_config.h"

namespace selftest {

bool runs_on(std::string_view target, Capability gpu) {
  target.remove_prefix(std::string_view("sm_").size());
  char suffix = '\0';
  if (target.back() == 'a' || target.back() == 'f') {
    suffix = target.back();
    target.remove_suffix(1);
  }
  const int number = std::stoi(std::string(target));
  const int major = number / 10, minor = number % 10;
  if (suffix == 'a') return gpu.major == major && gpu.minor == minor;
  return gpu.major == major && gpu.minor >= minor;
}

std::string why_not(std::string_view feature, Capability gpu) {
  for (const Feature& each : kFeatures) {
    if (feature != each.name) continue;
    std::string_view rest = each.compiled_for;
    while (!rest.empty()) {
      const auto end = rest.find(", ");
      if (runs_on(rest.substr(0, end), gpu)) return "";
      rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 2);
    }
    const std::string built = std::string("not on this target (built for ") + kTargets;
    if (each.compiled_for[0] == '\0') return built + "; needs " + each.needs + ")";
    return built + "; this GPU is " + std::to_string(gpu.major) + "." + std::to_string(gpu.minor) + ")";
  }
  return "not a feature of this package: " + std::string(feature);
}

}  // namespace selftest
