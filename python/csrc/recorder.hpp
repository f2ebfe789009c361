// What a call would run, in place of running it: foveal.explain() turns recording on for its
// thread, calls the function as the user would, and takes the explanations.
#pragma once

#include <foveal/device.hpp>
#include <foveal/problem.hpp>

namespace foveal::python {

[[nodiscard]] bool recording();

/// Notes the explanation of `problem` on the device that the recording names, else on `device`.
void record(const AttentionProblem& problem, const Device& device);

}  // namespace foveal::python

extern "C" {
/// Recording from now on in this thread; `device_name` as in foveal_explain_json, null: where the
/// tensors are.
__attribute__((visibility("default"))) void foveal_torch_record(const char* device_name);

/// Ends the recording: a JSON array with one explanation a problem. Valid until the next recording
/// of this thread.
__attribute__((visibility("default"))) const char* foveal_torch_take_record();
}
