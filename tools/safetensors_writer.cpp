#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "tools/atomic_file.hpp"
#include "tools/message_text.hpp"
#include "tools/safetensors.hpp"
#include "tools/safetensors_header.hpp"

namespace foveal::tools {
namespace {

constexpr std::size_t kDataAlignment = 8;  // the header, with its size, is padded to it by spaces

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = utf8_sequence_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

Status check_tensors(const std::string& path, std::span<const TensorView> tensors) {
  std::unordered_set<std::string_view> names{"__metadata__"};
  for (const TensorView& tensor : tensors) {
    const auto refusal = [&](std::string_view why) {
      return Status::invalid_argument(
          fmt::format("{}: tensor {}: {}", path, in_quotes(tensor.name), why));
    };
    if (!is_utf8(tensor.name)) return refusal("its name is not UTF-8");
    if (!names.insert(tensor.name).second) return refusal("its name is taken");
    const std::optional<std::int64_t> bytes = checked_tensor_bytes(tensor.shape, tensor.dtype);
    if (!bytes) {
      return refusal(fmt::format("shape {}: dimensions must be from 0, their bytes below 2^63",
                                 list_text(tensor.shape)));
    }
    if (static_cast<std::uint64_t>(*bytes) != tensor.data.size()) {
      return refusal(fmt::format("shape {} of {} takes {} bytes, got {}", list_text(tensor.shape),
                                 file_dtype_name(tensor.dtype), *bytes, tensor.data.size()));
    }
  }
  return Status::ok();
}

Status check_metadata(const std::string& path, const SafetensorsMetadata& metadata) {
  for (const auto& [key, value] : metadata) {
    if (is_utf8(key) && is_utf8(value)) continue;
    return Status::invalid_argument(fmt::format("{}: metadata {}: {} is not UTF-8", path,
                                                in_quotes(key), is_utf8(key) ? "its value" : "it"));
  }
  return Status::ok();
}

/// Indices of the tensors in the order of their data: wider elements first.
std::vector<std::size_t> data_order(std::span<const TensorView> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return file_dtype_bytes(tensors[a].dtype) > file_dtype_bytes(tensors[b].dtype);
  });
  return order;
}

std::string json_string(const std::string& text) { return nlohmann::json(text).dump(); }

std::string header_text(std::span<const TensorView> tensors, std::span<const std::size_t> order,
                        const SafetensorsMetadata& metadata) {
  std::vector<std::size_t> begin(tensors.size());
  std::size_t offset = 0;
  for (const std::size_t i : order) {
    begin[i] = offset;
    offset += tensors[i].data.size();
  }

  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& tensor = tensors[i];
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        text.size() > 1 ? "," : "", json_string(tensor.name),
                        file_dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), begin[i],
                        begin[i] + tensor.data.size());
  }
  text += '}';
  const std::size_t prefixed = sizeof(std::uint64_t) + text.size();
  text.append((kDataAlignment - prefixed % kDataAlignment) % kDataAlignment, ' ');
  return text;
}

}  // namespace

Status write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                         const SafetensorsMetadata& metadata) try {
  FOVEAL_RETURN_IF_ERROR(check_tensors(path, tensors));
  FOVEAL_RETURN_IF_ERROR(check_metadata(path, metadata));
  const std::vector<std::size_t> order = data_order(tensors);
  const std::string header = header_text(tensors, order, metadata);
  const std::uint64_t header_bytes = header.size();
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return Status::invalid_argument(
        fmt::format("{}: header size {}: the safetensors format allows at most {} bytes", path,
                    header_bytes, kMaxSafetensorsHeaderBytes));
  }

  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file) return file.status();
  FOVEAL_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(&header_bytes, 1))));
  FOVEAL_RETURN_IF_ERROR(file->write(header));
  for (const std::size_t i : order) FOVEAL_RETURN_IF_ERROR(file->write(tensors[i].data));
  return file->commit();
} catch (const std::bad_alloc&) {
  return Status::out_of_memory(path + ": not enough memory for the safetensors header");
}

}  // namespace foveal::tools
