// DeviceCopy and run_on_gpu: which host memory a problem's operands take, and its copy. Nothing
// here calls CUDA.
#include <algorithm>

#include "support/device_memory.hpp"
#include "support/element.hpp"
#include "support/workbench.hpp"

namespace foveal::test {
namespace {

constexpr std::size_t kAlignment = 256;

/// From here on an operand that is no workbench's own is copied element by element.
constexpr std::size_t kFarBytes = std::size_t{256} << 20;

std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

bool holds(const std::byte* begin, std::size_t bytes, const void* pointer) {
  return address_of(pointer) >= address_of(begin) &&
         address_of(pointer) < address_of(begin) + bytes;
}

/// The bytes between an operand's first and last element.
HostRange range_of(const TensorSpec& spec, const void* data) {
  const auto [low, high] = reach(spec);
  const std::int64_t width = dtype_bytes(spec.dtype);
  auto* first = const_cast<std::byte*>(static_cast<const std::byte*>(data)) + low * width;
  return {first, static_cast<std::size_t>((high - low + 1) * width)};
}

/// The operand in as few contiguous pieces as its dimensions allow.
std::vector<HostRange> contiguous_parts(TensorSpec spec, const void* data) {
  std::int64_t run = 1;
  while (spec.rank > 0) {
    const auto last = static_cast<std::size_t>(spec.rank - 1);
    if (spec.strides[last] != run && spec.shape[last] != 1) break;
    run *= spec.shape[last];
    --spec.rank;
  }
  const std::int64_t width = dtype_bytes(spec.dtype);
  auto* base = const_cast<std::byte*>(static_cast<const std::byte*>(data));
  std::vector<HostRange> parts;
  for_each_index(spec, [&](const Index& index) {
    parts.emplace_back(base + offset_of(spec, index) * width,
                       static_cast<std::size_t>(run * width));
  });
  return parts;
}

}  // namespace

DeviceCopy::DeviceCopy(const AttentionProblem& problem, const AttentionTensors& host,
                       std::span<const HostRange> whole, const DeviceStream& stream)
    : stream_(stream), tensors_(host) {
  for (const HostRange& range : whole) pieces_.push_back({range.data(), range.size()});
  std::vector<Piece> foreign;
  const auto is_whole = [&](const void* data) {
    return std::any_of(whole.begin(), whole.end(), [&](const HostRange& range) {
      return holds(range.data(), range.size(), data);
    });
  };
  for (const OperandInfo& info : operands()) {
    const TensorSpec& spec = problem.*(info.spec);
    const void* data = info.data(host);
    if (data == nullptr || spec.numel() == 0 || is_whole(data)) continue;
    const HostRange range = range_of(spec, data);
    foreign.push_back({range.data(), range.size()});
    if (range.size() <= kFarBytes) continue;
    foreign.back().parts = contiguous_parts(spec, data);
    foreign.back().comes_back = is_output_of(problem.pass, info.name);
  }
  for (const std::uint64_t* value : {host.dropout_seed_ptr, host.dropout_offset_ptr}) {
    if (value == nullptr || is_whole(value)) continue;
    auto* bytes = reinterpret_cast<std::byte*>(const_cast<std::uint64_t*>(value));
    foreign.push_back({bytes, sizeof *value});
  }
  add_foreign(foreign);
  place_pieces();
}

/// Ranges that overlap (slices of one tensor) become one, and so do neighbours: the end of one
/// would else be taken for the beginning of the next.
void DeviceCopy::add_foreign(const std::vector<Piece>& foreign) {
  std::vector<Piece> sorted = foreign;
  std::sort(sorted.begin(), sorted.end(),
            [](const Piece& a, const Piece& b) { return address_of(a.host) < address_of(b.host); });
  const std::size_t first = pieces_.size();
  for (Piece& piece : sorted) {
    Piece* last = pieces_.size() > first ? &pieces_.back() : nullptr;
    if (last == nullptr || address_of(last->host) + last->bytes < address_of(piece.host)) {
      pieces_.push_back(std::move(piece));
      continue;
    }
    last->comes_back = last->comes_back || piece.comes_back;
    const std::size_t end = address_of(piece.host) + piece.bytes - address_of(last->host);
    last->bytes = std::max(last->bytes, end);
    if (last->parts.empty() || piece.parts.empty()) {
      last->parts.clear();
    } else {
      last->parts.insert(last->parts.end(), piece.parts.begin(), piece.parts.end());
    }
  }
}

void DeviceCopy::place_pieces() {
  std::size_t total = 0;
  for (Piece& piece : pieces_) {
    piece.offset = total + address_of(piece.host) % kAlignment;
    total = (piece.offset + piece.bytes + kAlignment) / kAlignment * kAlignment;
  }
  buffer_ = std::make_unique<DeviceBuffer>(std::max(total, kAlignment), 0xFF, stream_);
  status_ = buffer_->status();
  if (!status_) return;
  for (const OperandInfo& info : operands()) {
    if (info.input != nullptr) {
      tensors_.*(info.input) = device_address(tensors_.*(info.input));
    } else {
      tensors_.*(info.output) = device_address(tensors_.*(info.output));
    }
  }
  for (const std::uint64_t* AttentionTensors::*value :
       {&AttentionTensors::dropout_seed_ptr, &AttentionTensors::dropout_offset_ptr}) {
    tensors_.*value = reinterpret_cast<const std::uint64_t*>(device_address(tensors_.*value));
  }
}

/// Null for what has no copy: operands without elements.
std::byte* DeviceCopy::device_address(const void* host) const {
  if (host == nullptr) return nullptr;
  for (const Piece& piece : pieces_) {
    if (!holds(piece.host, piece.bytes, host)) continue;
    return buffer_->data() + piece.offset + (address_of(host) - address_of(piece.host));
  }
  return nullptr;
}

Status DeviceCopy::copy_all(bool to_device) const {
  for (const Piece& piece : pieces_) {
    if (!to_device && !piece.comes_back) continue;
    const HostRange all{piece.host, piece.bytes};
    const std::span<const HostRange> parts =
        piece.parts.empty() ? std::span<const HostRange>{&all, 1} : piece.parts;
    for (const HostRange& part : parts) {
      std::byte* device = buffer_->data() + piece.offset + (part.data() - piece.host);
      FOVEAL_RETURN_IF_ERROR(to_device ? copy_bytes(device, part.data(), part.size(), stream_)
                                       : copy_bytes(part.data(), device, part.size(), stream_));
    }
  }
  return Status::ok();
}

Status DeviceCopy::upload() const { return copy_all(true); }

Status DeviceCopy::download() const { return copy_all(false); }

Status run_on_gpu(const Plan& planned, const AttentionTensors& host,
                  std::span<const HostRange> whole) {
  thread_local const DeviceStream stream;
  const DeviceCopy copy(planned.problem(), host, whole, stream);
  FOVEAL_RETURN_IF_ERROR(copy.status());
  const DeviceWorkspace workspace(planned.workspace_bytes(), stream);
  FOVEAL_RETURN_IF_ERROR(workspace.status());
  FOVEAL_RETURN_IF_ERROR(copy.upload());
  FOVEAL_RETURN_IF_ERROR(
      planned.run(copy.tensors(), workspace.data(), workspace.size(), stream.handle()));
  FOVEAL_RETURN_IF_ERROR(stream.wait());
  FOVEAL_RETURN_IF_ERROR(copy.download());
  return workspace.check_guards();
}

}  // namespace foveal::test
