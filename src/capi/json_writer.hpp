// JSON as text, without a tree: objects and arrays are opened, filled and closed in order.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace foveal::capi {

class JsonWriter {
 public:
  void begin_object() { begin('{'); }
  void end_object() { end('}'); }
  void begin_array() { begin('['); }
  void end_array() { end(']'); }

  /// The name of the member whose value comes next.
  void key(std::string_view name) {
    separate();
    quote(name);
    text_ += ": ";
    after_key_ = true;
  }

  void value(std::string_view text) {
    separate();
    quote(text);
  }
  void value(const char* text) { value(std::string_view(text)); }
  void value(bool flag) {
    separate();
    text_ += flag ? "true" : "false";
  }
  void value(std::integral auto number) {
    separate();
    text_ += std::to_string(number);
  }
  /// Shortest digits that read back as the same number; JSON has no inf or NaN, which become null.
  void value(double number) {
    separate();
    if (!std::isfinite(number)) {
      text_ += "null";
      return;
    }
    char digits[32];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
  }

  template <class Value>
  void member(std::string_view name, const Value& content) {
    key(name);
    value(content);
  }

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void begin(char bracket) {
    separate();
    text_ += bracket;
    first_ = true;
  }
  void end(char bracket) {
    text_ += bracket;
    first_ = false;
  }
  /// A comma before every element of an array or object but the first.
  void separate() {
    if (!first_ && !after_key_) text_ += ", ";
    first_ = false;
    after_key_ = false;
  }
  void quote(std::string_view text) {
    text_ += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        char escape[8];
        std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
        text_ += escape;
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  bool first_ = true;
  bool after_key_ = false;
};

}  // namespace foveal::capi
