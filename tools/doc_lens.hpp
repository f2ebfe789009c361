// Document lengths from a file of packs such as bench/data/doclens.json:
// {"groups": [{"name": "tiny-4k", "packs": [{"doc_lens": [14, 392, ...]}, ...]}, ...]}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <foveal/status.hpp>

namespace foveal::tools {

/// Largest sum of a pack's lengths: cu_seqlens are int32.
inline constexpr std::int64_t kMaxTotalLength = 2147483647;

/// The lengths of one pack. Keys that this does not need are left alone; `source` begins each
/// message.
Result<std::vector<std::int64_t>> parse_doc_lens(std::string_view text, const std::string& source,
                                                 const std::string& group, std::int64_t pack);

/// Refuses lengths whose sum is past kMaxTotalLength; `where` begins the message.
Status check_total_length(const std::vector<std::int64_t>& lengths, const std::string& where);

}  // namespace foveal::tools
