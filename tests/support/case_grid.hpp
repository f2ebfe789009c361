// Where test problems come from: a pairwise design over every feature of a pass, and seeded random
// ones over the same levels and beyond.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/case.hpp"

namespace foveal::test {

/// A case before its lengths are dealt out to the sequences.
struct CaseDraft {
  Case c;
  std::int64_t batch = 1;
  std::int64_t seqlen_q = 1;
  std::int64_t seqlen_k = 1;
  bool slack = true;            ///< Rows and slots beyond the longest sequence.
  bool rotary_partial = false;  ///< Rotary embedding over half the head.
};

struct FactorLevel {
  std::string name;
  std::function<void(CaseDraft&)> apply;
};

/// One thing in which problems differ, and all that it may be.
struct CaseFactor {
  std::string name;
  std::vector<FactorLevel> levels;
};

/// The factors of a pass.
[[nodiscard]] std::vector<CaseFactor> case_factors(Pass pass);

/// Whether two levels go together in a problem that validate() takes (and that a reference in fp64
/// can compute while one waits).
[[nodiscard]] bool levels_meet(const CaseFactor& fa, const FactorLevel& a, const CaseFactor& fb,
                               const FactorLevel& b);

/// The case of a draft: lengths of every sequence, options that its sizes leave no room for off.
[[nodiscard]] Case finish_case(CaseDraft draft, std::uint64_t seed);

/// The pairwise design. The same cases in every run.
[[nodiscard]] std::vector<Case> grid_cases(Pass pass);

/// One random case; its lengths are random too.
[[nodiscard]] Case random_case(Pass pass, std::uint64_t seed);

/// Simpler cases that may still fail where `c` failed: shorter, narrower, with one feature less.
[[nodiscard]] std::vector<Case> simpler_cases(const Case& c);

}  // namespace foveal::test
