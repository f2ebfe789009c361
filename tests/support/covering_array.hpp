// Pairwise designs: few rows in which every two levels of different factors that go together meet
// at least once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace foveal::test {

/// One level of each factor.
using DesignRow = std::vector<std::size_t>;

/// Whether level `a` of factor `fa` and level `b` of factor `fb` may meet; fa < fb.
using LevelsMeet =
    std::function<bool(std::size_t fa, std::size_t a, std::size_t fb, std::size_t b)>;

/// Greedy, after AETG (Cohen et al. 1997): each row is the best of several, each made level by
/// level, the most uncovered pairs first. The same rows for the same arguments. A pair that meets
/// but fits into no whole row is left out.
[[nodiscard]] std::vector<DesignRow> covering_array(const std::vector<std::size_t>& num_levels,
                                                    const LevelsMeet& meet, std::uint64_t seed);

}  // namespace foveal::test
