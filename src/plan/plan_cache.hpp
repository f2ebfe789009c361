// Plans by problem, so that a repeated call costs a hash and a comparison.
#pragma once

#include <memory>

#include <foveal/device.hpp>
#include <foveal/problem.hpp>

#include "plan/planner.hpp"

namespace foveal::planner {

/// What a plan depends on, by reference: a look-up copies nothing.
struct PlanKeyView {
  const AttentionProblem& problem;
  const Device& device;
  const Overrides& overrides;
};

/// Replaces num_threads 0 by the number it stands for, so that the key says what is planned.
Status resolve_device(Device& device);

/// Null when the plan isn't there. Safe from any thread.
[[nodiscard]] std::shared_ptr<const PlanState> find_plan(const PlanKeyView& key);

void store_plan(const PlanKeyView& key, std::shared_ptr<const PlanState> state);

}  // namespace foveal::planner
