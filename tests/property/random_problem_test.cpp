// Random problems against the oracle. A failure shrinks and prints its replay line.
#include "property/property_case.hpp"

namespace foveal::test {
namespace {

void matches(Pass pass) {
  const Case c = *any_case(pass);
  const CaseOutcome outcome = run_case(c);
  RC_PRE(outcome.kind != CaseOutcome::Kind::kUnsupported);
  if (outcome.kind == CaseOutcome::Kind::kFailed) RC_FAIL(outcome.message);
}

FOVEAL_PROPERTY(RandomProblem, ForwardMatchesTheOracle) { matches(Pass::kForward); }
FOVEAL_PROPERTY(RandomProblem, BackwardMatchesTheOracle) { matches(Pass::kBackward); }
FOVEAL_PROPERTY(RandomProblem, AppendMatchesTheOracle) { matches(Pass::kAppend); }
FOVEAL_PROPERTY(RandomProblem, MergeMatchesTheOracle) { matches(Pass::kMerge); }

/// With `deterministic` or `batch_invariant` the number of threads changes no bit.
void any_threads(Pass pass) {
  const Case c = *any_case(pass, [](Case& draft) {
    draft.batch_invariant = draft.deterministic = true;
    draft.num_threads = 1;
  });
  Case threads = c;
  threads.num_threads = *rc::gen::inRange<std::int64_t>(2, 9);
  BuiltCase serial(c);
  BuiltCase parallel(threads);
  run_or_discard(serial);
  run_or_discard(parallel);
  for (const Operand& operand : serial.bench.all()) {
    require(same_bits(operand, parallel.bench.at(operand.info->name)));
  }
}

FOVEAL_PROPERTY(ThreadCount, ForwardDoesNotDependOnIt) { any_threads(Pass::kForward); }
FOVEAL_PROPERTY(ThreadCount, BackwardDoesNotDependOnIt) { any_threads(Pass::kBackward); }

}  // namespace
}  // namespace foveal::test
