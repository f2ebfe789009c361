// foveal_attention as the C++ interface knows it: a problem and its tensors.
#pragma once

#include <span>

#include <foveal/foveal.h>
#include <foveal/device.hpp>
#include <foveal/problem.hpp>
#include <foveal/status.hpp>

namespace foveal::capi {

/// One operand's field in the C struct.
struct TensorField {
  const char* name;
  const DLTensor* foveal_attention::*tensor;
};

/// In the order of operands().
[[nodiscard]] std::span<const TensorField> tensor_fields();

/// Of a struct that take_struct() gave. Checks what C alone can get wrong; validate() does the
/// rest.
[[nodiscard]] Result<AttentionProblem> read_problem(const foveal_attention& attention);

[[nodiscard]] AttentionTensors read_tensors(const foveal_attention& attention);

/// The device that all tensors are on; the CPU when there is no tensor.
[[nodiscard]] Status read_common_device(const foveal_attention& attention, Device& device);

/// That `attention` is `planned`, device included, with the first difference in the message.
[[nodiscard]] Status check_same_problem(const AttentionProblem& planned, const Device& device,
                                        const foveal_attention& attention);

}  // namespace foveal::capi
