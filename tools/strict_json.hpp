// JSON as the command line accepts it: RFC 8259 to the letter, bounded in size and depth, and no
// key twice in an object (where most readers keep one of the two without a word).
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include <foveal/status.hpp>

namespace foveal::tools {

inline constexpr std::size_t kMaxJsonBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxJsonDepth = 16;

/// `source` begins each message.
Result<nlohmann::json> parse_strict_json(std::string_view text, const std::string& source);

/// What is wrong with a text that nlohmann's parser refused: `position` is what it reports, the
/// number of bytes read up to and including the one that does not fit.
std::string json_syntax_message(std::string_view text, std::size_t position);

/// The parser would take a byte 0 for the end of the text and not look behind it, so whoever calls
/// it asks here first: the message, or an empty string.
std::string json_nul_message(std::string_view text);

}  // namespace foveal::tools
