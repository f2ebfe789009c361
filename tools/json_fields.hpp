// Reads the fields of a JSON object with one clear sentence for each thing that can be wrong.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <foveal/status.hpp>

namespace foveal::tools {

/// Both ends allowed.
struct IntRange {
  std::int64_t min;
  std::int64_t max;
};

struct NumberRange {
  double min;
  double max;
};

/// A word of the file and the enumerator it stands for.
template <class Enum>
struct Word {
  std::string_view word;
  Enum value;
};
template <class Enum>
Word(const char*, Enum) -> Word<Enum>;

/// A view of one object, which must outlive it. `where` begins each message: "m.json: workload
/// 'a'". The get() functions leave the value as it is when the key is absent; require() asks for
/// keys.
class JsonFields {
 public:
  static Result<JsonFields> of(const nlohmann::json& value, std::string where);

  [[nodiscard]] const std::string& where() const { return where_; }
  void rename(std::string where) { where_ = std::move(where); }
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  /// Null when absent.
  [[nodiscard]] const nlohmann::json* find(std::string_view key) const;

  Status allow(std::initializer_list<std::string_view> keys) const;
  Status require(std::initializer_list<std::string_view> keys) const;

  Status get(std::string_view key, bool& value) const;
  Status get(std::string_view key, std::string& value) const;
  Status get(std::string_view key, IntRange range, std::int64_t& value) const;
  Status get(std::string_view key, NumberRange range, double& value) const;
  Status get(std::string_view key, IntRange range, std::vector<std::int64_t>& values) const;
  /// An object of its own, under the name `where: key`; an absent key reads as an empty object.
  Result<JsonFields> object(std::string_view key) const;

  template <class Enum>
  Status get(std::string_view key, std::span<const Word<Enum>> words, Enum& value) const {
    std::string word;
    if (!has(key)) return Status::ok();
    FOVEAL_RETURN_IF_ERROR(get(key, word));
    std::vector<std::string_view> allowed;
    for (const Word<Enum>& w : words) {
      if (w.word == word) {
        value = w.value;
        return Status::ok();
      }
      allowed.push_back(w.word);
    }
    return unknown_word(key, word, allowed);
  }

  /// `where: key <value>: why`.
  [[nodiscard]] Status refuse(std::string_view key, std::string_view why) const;

 private:
  JsonFields(const nlohmann::json& object, std::string where)
      : object_(&object), where_(std::move(where)) {}
  [[nodiscard]] Status unknown_word(std::string_view key, std::string_view word,
                                    std::span<const std::string_view> allowed) const;

  const nlohmann::json* object_;
  std::string where_;
};

/// A value for a message: scalars as they are, "an array", "an object".
std::string value_text(const nlohmann::json& value);

}  // namespace foveal::tools
