#include "tools/strict_json.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "tools/message_text.hpp"

namespace foveal::tools {
namespace {

std::string message_of(std::string_view text) {
  const Result<nlohmann::json> tree = parse_strict_json(text, "f.json");
  EXPECT_EQ(tree.status().code(), StatusCode::kInvalidArgument) << text;
  return tree.status().message();
}

TEST(StrictJson, ReadsEveryKindOfValue) {
  const auto tree =
      parse_strict_json(R"({"a": [1, -2, 0.5, true, null, "t"], "b": {"a": 1}})", "f");
  ASSERT_TRUE(tree) << tree.status().message();
  EXPECT_EQ((*tree)["a"][2], 0.5);
  EXPECT_EQ((*tree)["b"]["a"], 1);
}

TEST(StrictJson, SaysWhatIsNotJson) {
  EXPECT_EQ(message_of(""), "f.json: not JSON: the text ends before its value is complete");
  EXPECT_EQ(message_of("{\"a\": 1"),
            "f.json: not JSON: the text ends before its value is complete");
  EXPECT_EQ(message_of("{\"a\": x}"), "f.json: not JSON at line 1, column 7: '{\"a\": x'");
  EXPECT_EQ(message_of("{\n\n \"a\" 1}"), "f.json: not JSON at line 3, column 6: ' \"a\" 1'");
  EXPECT_EQ(message_of("{}\n{}"), "f.json: not JSON at line 2, column 1: '{'");
  EXPECT_EQ(message_of("[1e999]"), "f.json: not JSON at line 1, column 6: '[1e999'");
  EXPECT_EQ(message_of("[1] // why"), "f.json: not JSON at line 1, column 5: '[1] /'");
  EXPECT_EQ(message_of("[\"\xff\"]"), "f.json: not JSON at line 1, column 3: '[\"\\xff'");
  EXPECT_EQ(message_of("[\"" + std::string(90, 'x') + "\n\"]"),
            "f.json: not JSON at line 1, column 93: '" + std::string(23, 'x') + "\\x0a'");
  EXPECT_EQ(message_of("[NaN]"), "f.json: not JSON at line 1, column 2: '[N'");
  EXPECT_EQ(message_of("[" + std::string(90, ' ') + "x]"),
            "f.json: not JSON at line 1, column 92: '" + std::string(23, ' ') + "x'");
}

TEST(StrictJson, DoesNotStopAtAZeroByte) {
  EXPECT_EQ(message_of(std::string_view("{}\0 rest", 8)), "f.json: not JSON: byte 3 is 0");
}

TEST(StrictJson, RefusesAKeyThatStandsTwice) {
  EXPECT_EQ(message_of(R"({"a": {"b": 1, "c": 2, "b": 1}})"),
            "f.json: key 'b' stands twice in one object");
  EXPECT_TRUE(parse_strict_json(R"([{"a": {"a": 1}}, {"a": 2}])", "f.json").is_ok());
}

TEST(StrictJson, BoundsDepth) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(parse_strict_json(nested(kMaxJsonDepth), "f.json").is_ok());
  EXPECT_EQ(message_of(nested(kMaxJsonDepth + 1)),
            "f.json: arrays and objects are nested more than 16 deep");
}

TEST(StrictJson, BoundsSize) {
  const std::string text = "[]" + std::string(kMaxJsonBytes - 2, ' ');
  EXPECT_TRUE(parse_strict_json(text, "f.json").is_ok());
  EXPECT_EQ(message_of(text + " "), "f.json: 16777217 bytes of JSON: at most 16777216");
}

TEST(MessageText, QuotesOnOneLine) {
  EXPECT_EQ(in_quotes(""), "''");
  EXPECT_EQ(in_quotes("q"), "'q'");
  EXPECT_EQ(in_quotes("a\nb\x1b[0m\x7f"), "'a\\x0ab\\x1b[0m\\x7f'");
  EXPECT_EQ(in_quotes("gr\xc3\xb6\xc3\x9f"
                      "e"),
            "'gr\xc3\xb6\xc3\x9f"
            "e'");
  EXPECT_EQ(in_quotes("\xc2\x9b"), "'\\xc2\\x9b'");  // C1: a terminal may obey it
  EXPECT_EQ(in_quotes("\xff\xc3"), "'\\xff\\xc3'");
}

TEST(MessageText, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(in_quotes(std::string(80, 'x')), "'" + std::string(80, 'x') + "'");
  EXPECT_EQ(in_quotes(std::string(81, 'x')), "'" + std::string(80, 'x') + "...'");
  EXPECT_EQ(in_quotes(std::string(79, 'x') + "\xc3\xb6\xc3\xb6"),
            "'" + std::string(79, 'x') + "\xc3\xb6...'");
}

TEST(MessageText, CutsLongLists) {
  EXPECT_EQ(list_text({}), "[]");
  const std::array<std::int64_t, 9> values{1, 2, 3, 4, 5, 6, 7, 8, -9};
  EXPECT_EQ(list_text(std::span(values).first(8)), "[1, 2, 3, 4, 5, 6, 7, 8]");
  EXPECT_EQ(list_text(values), "[1, 2, 3, 4, 5, 6, 7, 8, ...]");
}

struct Utf8Case {
  std::string_view text;
  std::size_t bytes;
};

TEST(MessageText, KnowsUtf8) {
  const std::array cases{
      Utf8Case{"", 0},
      Utf8Case{"a", 1},
      Utf8Case{"\x80", 0},      // a continuation alone
      Utf8Case{"\xc1\x81", 0},  // overlong
      Utf8Case{"\xc2\x80", 2},
      Utf8Case{"\xc2", 0},  // cut
      Utf8Case{"\xc2"
               "a",
               0},
      Utf8Case{"\xe0\x9f\x80", 0},  // overlong
      Utf8Case{"\xe0\xa0\x80", 3},
      Utf8Case{"\xed\x9f\xbf", 3},
      Utf8Case{"\xed\xa0\x80", 0},      // a surrogate
      Utf8Case{"\xef\xbf", 0},          // cut
      Utf8Case{"\xf0\x8f\xbf\xbf", 0},  // overlong
      Utf8Case{"\xf0\x90\x80\x80", 4},
      Utf8Case{"\xf4\x8f\xbf\xbf", 4},
      Utf8Case{"\xf4\x90\x80\x80", 0},  // past the last code point
      Utf8Case{"\xf5\x80\x80\x80", 0},
  };
  for (const Utf8Case& c : cases) {
    EXPECT_EQ(utf8_sequence_bytes(c.text), c.bytes) << in_quotes(c.text);
  }
}

}  // namespace
}  // namespace foveal::tools
