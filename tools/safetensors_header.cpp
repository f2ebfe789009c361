#include "tools/safetensors_header.hpp"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "tools/message_text.hpp"
#include "tools/strict_json.hpp"

namespace foveal::tools {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";

std::string dtype_names() {
  std::string names;
  for (int i = 0; i <= static_cast<int>(FileDType::kF64); ++i) {
    names += fmt::format("{}{}", i ? ", " : "", file_dtype_name(static_cast<FileDType>(i)));
  }
  return names;
}

/// Follows the parser through the header's fixed structure. Each method answers whether to go on;
/// where it answers no, message() says why.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}

  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] SafetensorsHeader take() { return std::move(header_); }

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool number_integer(json::number_integer_t value) override {
    return unexpected(value == 0 ? "-0" : fmt::format("{}", value));
  }
  bool number_unsigned(json::number_unsigned_t value) override;
  bool number_float(json::number_float_t, const std::string& text) override {
    return unexpected(text);
  }
  bool string(std::string& value) override;
  bool binary(json::binary_t&) override { return unexpected("binary"); }

  bool start_object(std::size_t) override;
  bool key(std::string& name) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    return refuse(json_syntax_message(text_, position));
  }

 private:
  /// What may come next.
  enum class Expect {
    kHeader,        // the outermost {
    kName,          // a tensor's name, __metadata__, or the outermost }
    kMetadata,      // the { of __metadata__
    kMetadataName,  // or its }
    kMetadataValue,
    kEntry,  // the { of a tensor
    kField,  // dtype, shape, data_offsets, or its }
    kDType,
    kShape,      // its [
    kDimension,  // or its ]
    kOffsets,    // its [
    kOffset,     // or its ]
  };

  TensorEntry& entry() { return header_.tensors.back(); }
  [[nodiscard]] std::string entry_label() const {
    return "tensor " + in_quotes(header_.tensors.back().name);
  }
  bool refuse(std::string message) {
    message_ = "header: " + std::move(message);
    return false;
  }
  bool unexpected(std::string_view got);
  bool begin_entry(std::string& name);
  bool begin_field(std::string_view name);
  bool end_entry();

  std::string_view text_;
  Expect expect_ = Expect::kHeader;
  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;  // including __metadata__
  std::string metadata_key_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;  // of the entry being read
  std::string message_;
};

bool HeaderReader::unexpected(std::string_view got) {
  switch (expect_) {
    case Expect::kHeader: return refuse(fmt::format("must be an object, got {}", got));
    case Expect::kMetadata:
      return refuse(fmt::format("{} must be an object of strings, got {}", kMetadataKey, got));
    case Expect::kMetadataValue:
      return refuse(
          fmt::format("metadata {} must be a string, got {}", in_quotes(metadata_key_), got));
    case Expect::kEntry:
      return refuse(fmt::format("{} must be an object, got {}", entry_label(), got));
    case Expect::kDType:
      return refuse(fmt::format("{}: dtype must be a string, got {}", entry_label(), got));
    case Expect::kShape:
      return refuse(fmt::format("{}: shape must be an array, got {}", entry_label(), got));
    case Expect::kDimension:
      return refuse(fmt::format("{}: shape[{}] must be an integer from 0 to 2^63 - 1, got {}",
                                entry_label(), entry().shape.size(), got));
    case Expect::kOffsets:
      return refuse(fmt::format("{}: data_offsets must be an array, got {}", entry_label(), got));
    case Expect::kOffset:
      return refuse(
          fmt::format("{}: data_offsets[{}] must be an integer from 0 to 2^63 - 1, got {}",
                      entry_label(), entry().data_offsets.size(), got));
    case Expect::kName:
    case Expect::kMetadataName:
    case Expect::kField: break;  // the parser itself asks for a key here
  }
  return refuse(fmt::format("unexpected {}", got));
}

bool HeaderReader::number_unsigned(json::number_unsigned_t value) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (value > kMax) return unexpected(fmt::format("{}", value));
  if (expect_ == Expect::kDimension) {
    entry().shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  if (expect_ == Expect::kOffset) {
    if (entry().data_offsets.size() == 2) {
      return refuse(fmt::format("{}: data_offsets has more than 2 numbers", entry_label()));
    }
    entry().data_offsets.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  return unexpected(fmt::format("{}", value));
}

bool HeaderReader::string(std::string& value) {
  if (expect_ == Expect::kMetadataValue) {
    header_.metadata.emplace(metadata_key_, std::move(value));
    expect_ = Expect::kMetadataName;
    return true;
  }
  if (expect_ == Expect::kDType) {
    const std::optional<FileDType> dtype = file_dtype_from_name(value);
    if (!dtype) {
      return refuse(fmt::format("{}: unknown dtype {}: must be one of {}", entry_label(),
                                in_quotes(value), dtype_names()));
    }
    entry().dtype = *dtype;
    expect_ = Expect::kField;
    return true;
  }
  return unexpected(in_quotes(value));
}

bool HeaderReader::start_object(std::size_t) {
  switch (expect_) {
    case Expect::kHeader: expect_ = Expect::kName; return true;
    case Expect::kMetadata: expect_ = Expect::kMetadataName; return true;
    case Expect::kEntry: expect_ = Expect::kField; return true;
    default: return unexpected("an object");
  }
}

bool HeaderReader::key(std::string& name) {
  if (expect_ == Expect::kName) return begin_entry(name);
  if (expect_ == Expect::kField) return begin_field(name);
  metadata_key_ = std::move(name);
  if (header_.metadata.contains(metadata_key_)) {
    return refuse(fmt::format("metadata {} stands twice", in_quotes(metadata_key_)));
  }
  expect_ = Expect::kMetadataValue;
  return true;
}

bool HeaderReader::begin_entry(std::string& name) {
  if (!names_.insert(name).second) return refuse(fmt::format("{} stands twice", in_quotes(name)));
  if (name == kMetadataKey) {
    expect_ = Expect::kMetadata;
    return true;
  }
  header_.tensors.emplace_back().name = std::move(name);
  has_dtype_ = has_shape_ = has_offsets_ = false;
  expect_ = Expect::kEntry;
  return true;
}

bool HeaderReader::begin_field(std::string_view name) {
  bool* seen = nullptr;
  if (name == "dtype") {
    seen = &has_dtype_;
    expect_ = Expect::kDType;
  } else if (name == "shape") {
    seen = &has_shape_;
    expect_ = Expect::kShape;
  } else if (name == "data_offsets") {
    seen = &has_offsets_;
    expect_ = Expect::kOffsets;
  } else {
    return refuse(fmt::format("{}: unknown key {}: allowed are dtype, shape, data_offsets",
                              entry_label(), in_quotes(name)));
  }
  if (*seen) return refuse(fmt::format("{}: {} stands twice", entry_label(), name));
  *seen = true;
  return true;
}

bool HeaderReader::end_object() {
  if (expect_ == Expect::kField) return end_entry();
  expect_ = Expect::kName;  // of the metadata; behind the outermost } the parser allows nothing
  return true;
}

bool HeaderReader::end_entry() {
  for (const auto& [seen, name] : {std::pair(has_dtype_, "dtype"), std::pair(has_shape_, "shape"),
                                   std::pair(has_offsets_, "data_offsets")}) {
    if (!seen) return refuse(fmt::format("{}: {} is missing", entry_label(), name));
  }
  expect_ = Expect::kName;
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  switch (expect_) {
    case Expect::kShape: expect_ = Expect::kDimension; return true;
    case Expect::kOffsets: expect_ = Expect::kOffset; return true;
    default: return unexpected("an array");
  }
}

bool HeaderReader::end_array() {
  if (expect_ == Expect::kOffset && entry().data_offsets.size() != 2) {
    return refuse(fmt::format("{}: data_offsets has {} numbers, not 2", entry_label(),
                              entry().data_offsets.size()));
  }
  expect_ = Expect::kField;
  return true;
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json_text,
                                                   const std::string& source) {
  const auto refusal = [&](std::string_view why) {
    return Status::invalid_argument(fmt::format("{}: {}", source, why));
  };
  if (!json_text.starts_with('{')) {
    return refusal(fmt::format("header must begin with '{{', got {}",
                               json_text.empty() ? "nothing" : in_quotes(json_text.substr(0, 1))));
  }
  if (const std::string nul = json_nul_message(json_text); !nul.empty()) {
    return refusal("header: " + nul);
  }
  HeaderReader reader(json_text);
  if (!json::sax_parse(json_text.begin(), json_text.end(), &reader)) {
    return refusal(reader.message());
  }
  return reader.take();
}

}  // namespace foveal::tools
