#include "tools/doc_lens.hpp"

#include <fmt/format.h>

#include <optional>

#include "tools/json_fields.hpp"
#include "tools/message_text.hpp"
#include "tools/strict_json.hpp"

namespace foveal::tools {
namespace {

using nlohmann::json;

/// The array under `key`, or why there is none.
Result<const json*> array_of(const JsonFields& fields, std::string_view key) {
  FOVEAL_RETURN_IF_ERROR(fields.require({key}));
  const json* array = fields.find(key);
  if (!array->is_array()) return fields.refuse(key, "must be an array");
  return array;
}

Result<JsonFields> find_group(const JsonFields& file, const std::string& name) {
  const Result<const json*> groups = array_of(file, "groups");
  if (!groups) return groups.status();
  std::string names;
  for (std::size_t i = 0; i < (*groups)->size(); ++i) {
    const std::string where = fmt::format("{}: groups[{}]", file.where(), i);
    const Result<JsonFields> group = JsonFields::of((**groups)[i], where);
    if (!group) return group.status();
    std::string found;
    FOVEAL_RETURN_IF_ERROR(group->require({"name"}));
    FOVEAL_RETURN_IF_ERROR(group->get("name", found));
    if (found == name) return *group;
    names += (names.empty() ? "" : ", ") + in_quotes(found);
  }
  return Status::invalid_argument(fmt::format("{}: no group {}: it has {}", file.where(),
                                              in_quotes(name), names.empty() ? "none" : names));
}

}  // namespace

Status check_total_length(const std::vector<std::int64_t>& lengths, const std::string& where) {
  std::int64_t total = 0;  // each length is at most kMaxTotalLength, so it can't wrap
  for (const std::int64_t length : lengths) {
    total += length;
    if (total > kMaxTotalLength) {
      return Status::invalid_argument(
          fmt::format("{}: the lengths add up to more than {}", where, kMaxTotalLength));
    }
  }
  return Status::ok();
}

Result<std::vector<std::int64_t>> parse_doc_lens(std::string_view text, const std::string& source,
                                                 const std::string& group, std::int64_t pack) {
  const Result<json> tree = parse_strict_json(text, source);
  if (!tree) return tree.status();
  const Result<JsonFields> file = JsonFields::of(*tree, source);
  if (!file) return file.status();
  const Result<JsonFields> found = find_group(*file, group);
  if (!found) return found.status();
  const Result<const json*> packs = array_of(*found, "packs");
  if (!packs) return packs.status();
  const auto num_packs = static_cast<std::int64_t>((*packs)->size());
  if (pack < 0 || pack >= num_packs) {
    return Status::invalid_argument(fmt::format("{}: group {} has no pack {}: it has {}", source,
                                                in_quotes(group), pack, num_packs));
  }

  const std::string where = fmt::format("{}: group {} pack {}", source, in_quotes(group), pack);
  const Result<JsonFields> fields =
      JsonFields::of((**packs)[static_cast<std::size_t>(pack)], where);
  if (!fields) return fields.status();
  std::vector<std::int64_t> lengths;
  FOVEAL_RETURN_IF_ERROR(fields->require({"doc_lens"}));
  FOVEAL_RETURN_IF_ERROR(fields->get("doc_lens", IntRange{0, kMaxTotalLength}, lengths));
  FOVEAL_RETURN_IF_ERROR(check_total_length(lengths, where));
  return lengths;
}

}  // namespace foveal::tools
