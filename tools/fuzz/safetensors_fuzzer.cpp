// Any bytes must be either refused with one line of text or read as tensors inside those bytes.
// What was read is written and read again: the writer accepts all that the reader accepts.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "tools/safetensors.hpp"

namespace {

using foveal::Result;
using foveal::tools::SafetensorsFile;
using foveal::tools::TensorView;

void require(bool condition) {
  if (!condition) __builtin_trap();
}

bool is_one_line(const std::string& message) {
  return message.starts_with("fuzz.safetensors: ") && message.find('\n') == std::string::npos;
}

/// Touches every byte, so that the sanitizer sees a view that leaves the input.
std::size_t sum_of(std::span<const std::byte> data) {
  std::size_t sum = 0;
  for (const std::byte b : data) sum += std::to_integer<std::size_t>(b);
  return sum;
}

void check_tensor(const TensorView& tensor, std::span<const std::byte> input) {
  if (!tensor.data.empty()) {
    require(tensor.data.data() >= input.data());
    require(tensor.data.data() + tensor.data.size() <= input.data() + input.size());
  }
  const auto bytes = tensor.numel() * foveal::tools::file_dtype_bytes(tensor.dtype);
  require(bytes == static_cast<std::int64_t>(tensor.data.size()));
}

void check_round_trip(const SafetensorsFile& file) {
  static const std::string path =
      "/tmp/foveal-safetensors-fuzzer-" + std::to_string(::getpid()) + ".safetensors";
  require(foveal::tools::write_safetensors(path, file.tensors(), file.metadata()).is_ok());
  const Result<SafetensorsFile> again = SafetensorsFile::open(path);
  ::unlink(path.c_str());
  require(again.is_ok());
  require(again->metadata() == file.metadata());
  require(again->tensors().size() == file.tensors().size());
  for (const TensorView& tensor : file.tensors()) {
    const TensorView* copy = again->find(tensor.name);
    require(copy && copy->dtype == tensor.dtype && copy->shape == tensor.shape);
    require(copy->is_aligned() && std::ranges::equal(copy->data, tensor.data));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  const Result<SafetensorsFile> file = SafetensorsFile::parse(input, "fuzz.safetensors");
  if (!file) {
    require(is_one_line(file.status().message()));
    return 0;
  }
  std::size_t sum = 0;
  for (const TensorView& tensor : file->tensors()) {
    check_tensor(tensor, input);
    sum += sum_of(tensor.data);
  }
  require(sum <= sum_of(input));
  check_round_trip(*file);
  return 0;
}
