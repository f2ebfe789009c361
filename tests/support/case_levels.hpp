// The single factors that the passes' grids are made of.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

#include "support/case_grid.hpp"

namespace foveal::test {

/// A factor over numbers, each a level.
[[nodiscard]] CaseFactor numbers(std::string name, std::initializer_list<std::int64_t> values,
                                 void (*set)(CaseDraft& draft, std::int64_t value));
[[nodiscard]] CaseFactor yes_or_no(std::string name, bool Case::*flag);

[[nodiscard]] CaseFactor dtype_factor();
[[nodiscard]] CaseFactor headdim_factor();
[[nodiscard]] CaseFactor group_factor();
[[nodiscard]] CaseFactor heads_factor();
[[nodiscard]] CaseFactor batch_factor();
[[nodiscard]] CaseFactor seqlen_q_factor(std::initializer_list<std::int64_t> lengths);
[[nodiscard]] CaseFactor seqlen_k_factor(std::initializer_list<std::int64_t> lengths);
[[nodiscard]] CaseFactor mask_factor();
[[nodiscard]] CaseFactor softcap_factor();
[[nodiscard]] CaseFactor bias_factor(bool backward);
[[nodiscard]] CaseFactor sinks_factor(bool backward);
[[nodiscard]] CaseFactor alibi_factor();
[[nodiscard]] CaseFactor dropout_factor();
/// `shared`: with the layouts in which elements share memory.
[[nodiscard]] CaseFactor layout_factor(std::string name, Layout Case::*field, bool shared);
[[nodiscard]] CaseFactor lse_factor();
[[nodiscard]] CaseFactor scale_factor();
[[nodiscard]] CaseFactor threads_factor();
[[nodiscard]] CaseFactor poison_factor();
[[nodiscard]] CaseFactor slack_factor();
[[nodiscard]] CaseFactor gradients_factor();

/// One way to store queries and keys; `more` sets what belongs to it.
[[nodiscard]] FactorLevel storage_level(std::string name, QForm q, KForm k,
                                        std::function<void(CaseDraft&)> more = {});
[[nodiscard]] CaseFactor backward_storage_factor();
[[nodiscard]] CaseFactor forward_storage_factor();
[[nodiscard]] CaseFactor append_storage_factor();

}  // namespace foveal::test
