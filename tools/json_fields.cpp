#include "tools/json_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "tools/message_text.hpp"

namespace foveal::tools {
namespace {

using nlohmann::json;

/// Absent for anything but an integer of 64 bits.
std::optional<std::int64_t> integer_of(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const bool past_int64 = value.is_number_unsigned() &&
                          value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max();
  if (past_int64) return std::nullopt;
  return value.get<std::int64_t>();
}

bool contains(std::optional<std::int64_t> value, IntRange range) {
  return value && *value >= range.min && *value <= range.max;
}

}  // namespace

std::string value_text(const json& value) {
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  return value.dump();
}

Result<JsonFields> JsonFields::of(const json& value, std::string where) {
  if (!value.is_object()) {
    return Status::invalid_argument(
        fmt::format("{} must be an object, got {}", where, value_text(value)));
  }
  return JsonFields(value, std::move(where));
}

const json* JsonFields::find(std::string_view key) const {
  const auto field = object_->find(key);
  return field == object_->end() ? nullptr : &*field;
}

Status JsonFields::allow(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : object_->items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    return Status::invalid_argument(fmt::format("{}: unknown key {}: allowed are {}", where_,
                                                in_quotes(key), fmt::join(keys, ", ")));
  }
  return Status::ok();
}

Status JsonFields::require(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    if (has(key)) continue;
    return Status::invalid_argument(fmt::format("{}: {} is missing", where_, key));
  }
  return Status::ok();
}

Status JsonFields::get(std::string_view key, bool& value) const {
  const json* field = find(key);
  if (!field) return Status::ok();
  if (!field->is_boolean()) return refuse(key, "must be true or false");
  value = field->get<bool>();
  return Status::ok();
}

Status JsonFields::get(std::string_view key, std::string& value) const {
  const json* field = find(key);
  if (!field) return Status::ok();
  if (!field->is_string()) return refuse(key, "must be a string");
  value = field->get_ref<const std::string&>();
  return Status::ok();
}

Status JsonFields::get(std::string_view key, IntRange range, std::int64_t& value) const {
  const json* field = find(key);
  if (!field) return Status::ok();
  const std::optional<std::int64_t> integer = integer_of(*field);
  if (!contains(integer, range)) {
    return refuse(key, fmt::format("must be an integer from {} to {}", range.min, range.max));
  }
  value = *integer;
  return Status::ok();
}

Status JsonFields::get(std::string_view key, NumberRange range, double& value) const {
  const json* field = find(key);
  if (!field) return Status::ok();
  const double number = field->is_number() ? field->get<double>() : range.min - 1;
  if (!(number >= range.min && number <= range.max)) {
    return refuse(key, fmt::format("must be a number from {} to {}", range.min, range.max));
  }
  value = number;
  return Status::ok();
}

Status JsonFields::get(std::string_view key, IntRange range,
                       std::vector<std::int64_t>& values) const {
  const json* field = find(key);
  if (!field) return Status::ok();
  if (!field->is_array()) return refuse(key, "must be an array of integers");
  values.clear();
  values.reserve(field->size());
  for (const json& element : *field) {
    const std::optional<std::int64_t> integer = integer_of(element);
    if (!contains(integer, range)) {
      return Status::invalid_argument(fmt::format("{}: {}[{}] {}: must be an integer from {} to {}",
                                                  where_, key, values.size(), value_text(element),
                                                  range.min, range.max));
    }
    values.push_back(*integer);
  }
  return Status::ok();
}

Result<JsonFields> JsonFields::object(std::string_view key) const {
  static const json kEmpty = json::object();
  const json* field = find(key);
  return of(field ? *field : kEmpty, fmt::format("{}: {}", where_, key));
}

Status JsonFields::refuse(std::string_view key, std::string_view why) const {
  const json* field = find(key);
  return Status::invalid_argument(
      fmt::format("{}: {} {}: {}", where_, key, field ? value_text(*field) : "absent", why));
}

Status JsonFields::unknown_word(std::string_view key, std::string_view word,
                                std::span<const std::string_view> allowed) const {
  return Status::invalid_argument(fmt::format("{}: {} {}: must be one of {}", where_, key,
                                              in_quotes(word), fmt::join(allowed, ", ")));
}

}  // namespace foveal::tools
