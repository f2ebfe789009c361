#include "tools/strict_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "tools/message_text.hpp"

namespace foveal::tools {
namespace {

using nlohmann::json;

/// First pass over the text, without a tree: syntax, depth, and keys that stand twice. Each method
/// answers the parser whether to go on.
class StructureCheck : public nlohmann::json_sax<json> {
 public:
  explicit StructureCheck(std::string_view text) : text_(text) {}

  [[nodiscard]] const std::string& message() const { return message_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(json::number_integer_t) override { return true; }
  bool number_unsigned(json::number_unsigned_t) override { return true; }
  bool number_float(json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (keys_.back().insert(name).second) return true;
    message_ = fmt::format("key {} stands twice in one object", in_quotes(name));
    return false;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    message_ = json_syntax_message(text_, position);
    return false;
  }

 private:
  bool open() {
    keys_.emplace_back();
    if (keys_.size() <= kMaxJsonDepth) return true;
    message_ = fmt::format("arrays and objects are nested more than {} deep", kMaxJsonDepth);
    return false;
  }

  bool close() {
    keys_.pop_back();
    return true;
  }

  std::string_view text_;
  std::vector<std::set<std::string>> keys_;  // of each open object; unused for arrays
  std::string message_;
};

}  // namespace

std::string json_syntax_message(std::string_view text, std::size_t position) {
  constexpr std::size_t kShownBytes = 24;
  if (position > text.size()) return "not JSON: the text ends before its value is complete";
  // A line break that does not fit ends its line.
  const std::string_view before = text.substr(0, std::max<std::size_t>(position, 1) - 1);
  const std::size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  const std::string_view line = text.substr(line_begin, position - line_begin);
  return fmt::format("not JSON at line {}, column {}: {}",
                     1 + std::count(before.begin(), before.end(), '\n'), line.size(),
                     in_quotes(line.substr(line.size() - std::min(line.size(), kShownBytes))));
}

std::string json_nul_message(std::string_view text) {
  const std::size_t position = text.find('\0');
  if (position == std::string_view::npos) return "";
  return fmt::format("not JSON: byte {} is 0", position + 1);
}

Result<json> parse_strict_json(std::string_view text, const std::string& source) {
  const auto refusal = [&](std::string_view why) {
    return Status::invalid_argument(fmt::format("{}: {}", source, why));
  };
  if (text.size() > kMaxJsonBytes) {
    return refusal(fmt::format("{} bytes of JSON: at most {}", text.size(), kMaxJsonBytes));
  }
  if (const std::string nul = json_nul_message(text); !nul.empty()) return refusal(nul);

  StructureCheck check(text);
  if (!json::sax_parse(text.begin(), text.end(), &check)) return refusal(check.message());
  return json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace foveal::tools
