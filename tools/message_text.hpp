// Pieces of error messages: what comes from a file is shown on one line and never at full length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace foveal::tools {

/// 'text' in quotes. Control characters and bytes that are not UTF-8 are escaped, and long text is
/// cut with "...".
std::string in_quotes(std::string_view text);

/// Bytes of the UTF-8 sequence (RFC 3629) that `text` begins with; 0 if it begins with none.
std::size_t utf8_sequence_bytes(std::string_view text);

/// [2, 128, 16, 64]; long lists are cut with "...".
std::string list_text(std::span<const std::int64_t> values);

}  // namespace foveal::tools
