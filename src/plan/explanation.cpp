// A plan as text.
#include <foveal/plan.hpp>

#include "core/format.hpp"

namespace foveal {
namespace {

const char* outcome_text(KernelVerdict::Outcome outcome) {
  switch (outcome) {
    case KernelVerdict::Outcome::kChosen: return "chosen";
    case KernelVerdict::Outcome::kSlower: return "slower";
    case KernelVerdict::Outcome::kUnsupported: return "cannot";
  }
  return "";
}

std::string bytes_text(double bytes) {
  if (bytes < 1024) return concat(bytes, " B");
  if (bytes < 1024.0 * 1024) return concat(bytes / 1024, " KiB");
  if (bytes < 1024.0 * 1024 * 1024) return concat(bytes / (1024.0 * 1024), " MiB");
  return concat(bytes / (1024.0 * 1024 * 1024), " GiB");
}

}  // namespace

std::string to_string(const Explanation& explanation) {
  std::string text = concat("problem    ", explanation.problem, "\n", "device     ",
                            explanation.device.name, "\n");
  if (explanation.kernel.empty()) {
    text += "kernel     none can\n";
  } else {
    text += concat("kernel     ", explanation.kernel, " (", explanation.configuration, ")\n",
                   "predicted  ", explanation.predicted_time_us, " us; at the device's limits ",
                   explanation.roofline_time_us(), " us (",
                   explanation.compute_time_us > explanation.memory_time_us ? "compute" : "memory",
                   " bound: ", explanation.work.flops / 1e9, " GFLOP, ",
                   bytes_text(explanation.work.read_bytes + explanation.work.written_bytes), ")\n",
                   "limits     ", explanation.device.limits_source, "\n", "workspace  ",
                   bytes_text(static_cast<double>(explanation.workspace_bytes)), "\n");
  }
  for (const WorkspacePart& part : explanation.workspace) {
    text +=
        concat("           ", bytes_text(static_cast<double>(part.bytes)), "  ", part.name, "\n");
  }
  for (const std::string& note : explanation.notes) text += concat("note       ", note, "\n");
  text += "kernels\n";
  for (const KernelVerdict& verdict : explanation.verdicts) {
    text +=
        concat("  ", outcome_text(verdict.outcome), "  ", verdict.name, ": ", verdict.reason, "\n");
  }
  return text;
}

}  // namespace foveal
