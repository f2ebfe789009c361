// What only the data can tell, where the host can read it: null pointers, lengths, page tables.
// Everything is checked before any work, so that a refused call has written nothing.
#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include <foveal/problem.hpp>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "problem/geometry.hpp"
#include "problem/validate.hpp"

namespace foveal {

namespace checks {

Status check_pointers(const AttentionProblem& problem, const AttentionTensors& tensors) {
  for (const OperandInfo& operand : operands()) {
    const TensorSpec& spec = problem.*operand.spec;
    if (spec.numel() == 0) continue;
    const void* data = operand.data(tensors);
    if (data == nullptr) {
      return Status::invalid_argument(concat(operand.name, " has no data: its pointer is null"));
    }
    const bool is_int32 = spec.dtype == DType::kInt32;
    if (is_int32 && reinterpret_cast<std::uintptr_t>(data) % alignof(std::int32_t) != 0) {
      return Status::invalid_argument(concat(operand.name, " is not aligned to 4 bytes"));
    }
  }
  return Status::ok();
}

Status check_element_alignment(const AttentionProblem& problem, const AttentionTensors& tensors) {
  for (const OperandInfo& operand : operands()) {
    const TensorSpec& spec = problem.*operand.spec;
    if (!spec.present()) continue;
    const auto width = static_cast<std::uintptr_t>(dtype_bytes(spec.dtype));
    if (reinterpret_cast<std::uintptr_t>(operand.data(tensors)) % width != 0) {
      return Status::invalid_argument(
          concat(operand.name, " is not aligned to its elements of ", width, " bytes"));
    }
  }
  return Status::ok();
}

}  // namespace checks

namespace {

using algorithm::SeqlenInfo;
using algorithm::SeqlenSource;

Status check_cu_seqlens(const char* name, const char* total_name, const char* max_name,
                        const std::int32_t* cu_seqlens, std::int64_t batch, std::int64_t total,
                        std::int64_t max_seqlen) {
  if (cu_seqlens == nullptr) return Status::ok();
  if (cu_seqlens[0] != 0) {
    return Status::invalid_argument(concat(name, " must start at 0, got ", cu_seqlens[0]));
  }
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t length = std::int64_t{cu_seqlens[b + 1]} - cu_seqlens[b];
    if (length < 0) {
      return Status::invalid_argument(concat(name, " must not decrease: entry ", b + 1, " is ",
                                             cu_seqlens[b + 1], " after ", cu_seqlens[b]));
    }
    if (max_seqlen > 0 && length > max_seqlen) {
      return Status::invalid_argument(
          concat(max_name, " ", max_seqlen, ": sequence ", b, " has ", length, " tokens"));
    }
  }
  if (cu_seqlens[batch] != total) {
    return Status::invalid_argument(
        concat(name, " must end at ", total_name, " = ", total, ", got ", cu_seqlens[batch]));
  }
  return Status::ok();
}

Status check_used(const char* name, const std::int32_t* used, std::int64_t b,
                  std::int64_t capacity) {
  if (used == nullptr || (used[b] >= 0 && used[b] <= capacity)) return Status::ok();
  return Status::invalid_argument(concat(
      name, "[", b, "] ", used[b], ": between 0 and the capacity of sequence ", b, ", ", capacity));
}

Status check_room(const SeqlenInfo& info, std::int64_t seqlen_new, std::int64_t b) {
  if (info.seqlen_cache + seqlen_new <= info.capacity_k) return Status::ok();
  return Status::invalid_argument(concat("seqused_k[", b, "] ", info.seqlen_cache, ": with ",
                                         seqlen_new, " tokens to append at most ",
                                         max_of<std::int64_t>(info.capacity_k - seqlen_new, 0),
                                         ", the capacity being ", info.capacity_k));
}

Status check_leftpad(const SeqlenSource& source, const SeqlenInfo& info, std::int64_t b) {
  if (source.leftpad_k == nullptr) return Status::ok();
  const std::int64_t end = min_of(info.seqlen_cache + source.seqlen_new, info.capacity_k);
  const std::int32_t leftpad = source.leftpad_k[b];
  if (leftpad >= 0 && leftpad <= end) return Status::ok();
  return Status::invalid_argument(concat("leftpad_k[", b, "] ", leftpad,
                                         ": between 0 and the keys in use of sequence ", b, ", ",
                                         end));
}

Status check_pages(const AttentionProblem& problem, const AttentionGeometry& geometry,
                   const AttentionTensors& tensors, const SeqlenInfo& info, std::int64_t b) {
  if (!geometry.paged()) return Status::ok();
  const auto* line =
      static_cast<const std::int32_t*>(tensors.block_table) + b * problem.block_table.strides[0];
  const std::int64_t end = info.leftpad_k + info.seqlen_k;
  // Appended tokens may lie inside the left padding, where they are written all the same.
  const std::int64_t begin =
      geometry.seqlen_new > 0 ? min_of(info.leftpad_k, info.seqlen_cache) : info.leftpad_k;
  for (std::int64_t page = begin / geometry.page_size; page * geometry.page_size < end; ++page) {
    const std::int32_t entry = line[page * problem.block_table.strides[1]];
    if (entry < 0 || entry >= geometry.num_pages) {
      return Status::invalid_argument(concat("block_table[", b, "][", page, "] ", entry,
                                             ": between 0 and ", geometry.num_pages - 1,
                                             ", since sequence ", b, " uses ", end, " keys"));
    }
  }
  return Status::ok();
}

Status check_cache_row(const AttentionProblem& problem, const AttentionTensors& tensors,
                       std::int64_t b) {
  if (!problem.cache_batch_idx.present()) return Status::ok();
  const std::int64_t row = cache_row(tensors, b);
  const std::int64_t rows = problem.k.shape[0];
  if (row >= 0 && row < rows) return Status::ok();
  return Status::invalid_argument(concat("cache_batch_idx[", b, "] ", row, ": between 0 and ",
                                         rows - 1, ", the rows of the cache"));
}

Status check_rotary(const AttentionProblem& problem, const AttentionGeometry& geometry,
                    const SeqlenInfo& info, std::int64_t b) {
  if (geometry.rotary_dim == 0) return Status::ok();
  const bool advances = geometry.window != algorithm::Window{};
  const std::int64_t q_positions =
      problem.q.present() && info.seqlen_q > 0 ? (advances ? info.seqlen_q : 1) : 0;
  const std::int64_t needed = info.seqlen_cache + max_of(geometry.seqlen_new, q_positions);
  const std::int64_t positions = problem.rotary_cos.shape[0];
  if (needed <= positions) return Status::ok();
  return Status::invalid_argument(
      concat("rotary_cos has ", positions, " positions: sequence ", b, " reaches ", needed));
}

/// Where a sequence appends: a part of a row of the cache or of a page.
struct AppendedRows {
  std::int64_t place;  ///< Row of the cache, or page.
  std::int64_t begin, end;
  std::int64_t b;
};

void list_appended(const AttentionProblem& problem, const AttentionGeometry& geometry,
                   const AttentionTensors& tensors, const SeqlenInfo& info, std::int64_t b,
                   std::vector<AppendedRows>& list) {
  const std::int64_t first = info.seqlen_cache;
  const std::int64_t end = first + geometry.seqlen_new;
  if (!geometry.paged()) {
    list.push_back({cache_row(tensors, b), first, end, b});
    return;
  }
  const auto* line =
      static_cast<const std::int32_t*>(tensors.block_table) + b * problem.block_table.strides[0];
  for (std::int64_t begin = first; begin < end;) {
    const std::int64_t page = begin / geometry.page_size;
    const std::int64_t page_begin = page * geometry.page_size;
    const std::int64_t part_end = min_of(end, page_begin + geometry.page_size);
    list.push_back({line[page * problem.block_table.strides[1]], begin - page_begin,
                    part_end - page_begin, b});
    begin = part_end;
  }
}

/// Sequences may read one row or page, but each appends to a place of its own.
Status check_appended_once(const AttentionProblem& problem, const AttentionGeometry& geometry,
                           const AttentionTensors& tensors, const SeqlenSource& source) {
  const bool may_meet = geometry.paged() || problem.cache_batch_idx.present();
  if (geometry.seqlen_new == 0 || !may_meet) return Status::ok();
  std::vector<AppendedRows> list;
  list.reserve(static_cast<std::size_t>(geometry.batch));
  for (std::int64_t b = 0; b < geometry.batch; ++b) {
    list_appended(problem, geometry, tensors, algorithm::seqlen_info(source, b), b, list);
  }
  std::sort(list.begin(), list.end(), [](const AppendedRows& x, const AppendedRows& y) {
    return std::tie(x.place, x.begin, x.b) < std::tie(y.place, y.begin, y.b);
  });
  for (std::size_t i = 1; i < list.size(); ++i) {
    const AppendedRows& one = list[i - 1];
    const AppendedRows& other = list[i];
    if (one.place != other.place || one.end <= other.begin) continue;
    return Status::invalid_argument(
        concat(geometry.paged() ? "block_table" : "cache_batch_idx", ": sequences ",
               min_of(one.b, other.b), " and ", max_of(one.b, other.b), " both append to ",
               geometry.paged() ? "page " : "row ", one.place, ", at ", other.begin));
  }
  return Status::ok();
}

/// Whether anything is to be checked sequence by sequence.
bool has_lengths(const SeqlenSource& source, const AttentionProblem& problem) {
  return source.seqused_q != nullptr || source.seqused_k != nullptr ||
         source.leftpad_k != nullptr || problem.block_table.present() ||
         problem.cache_batch_idx.present() || problem.k_new.present();
}

}  // namespace

Status validate(const AttentionProblem& problem, const AttentionTensors& tensors) {
  FOVEAL_RETURN_IF_ERROR(checks::check_pointers(problem, tensors));
  if (problem.pass == Pass::kMerge) return Status::ok();

  const AttentionGeometry geometry = make_geometry(problem);
  const SeqlenSource source = seqlen_source(problem, geometry, tensors);
  FOVEAL_RETURN_IF_ERROR(check_cu_seqlens("cu_seqlens_q", "total_q", "max_seqlen_q",
                                          source.cu_seqlens_q, geometry.batch, geometry.total_q,
                                          problem.max_seqlen_q));
  FOVEAL_RETURN_IF_ERROR(check_cu_seqlens("cu_seqlens_k", "total_k", "max_seqlen_k",
                                          source.cu_seqlens_k, geometry.batch, geometry.total_k,
                                          problem.max_seqlen_k));
  if (!has_lengths(source, problem)) return Status::ok();
  for (std::int64_t b = 0; b < geometry.batch; ++b) {
    const SeqlenInfo info = algorithm::seqlen_info(source, b);
    FOVEAL_RETURN_IF_ERROR(check_used("seqused_q", source.seqused_q, b, info.capacity_q));
    FOVEAL_RETURN_IF_ERROR(check_used("seqused_k", source.seqused_k, b, info.capacity_k));
    FOVEAL_RETURN_IF_ERROR(check_room(info, geometry.seqlen_new, b));
    FOVEAL_RETURN_IF_ERROR(check_leftpad(source, info, b));
    FOVEAL_RETURN_IF_ERROR(check_pages(problem, geometry, tensors, info, b));
    FOVEAL_RETURN_IF_ERROR(check_cache_row(problem, tensors, b));
    FOVEAL_RETURN_IF_ERROR(check_rotary(problem, geometry, info, b));
  }
  return check_appended_once(problem, geometry, tensors, source);
}

}  // namespace foveal
