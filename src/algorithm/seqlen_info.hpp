// The effective lengths of one sequence and where it begins: cu_seqlens, seqused, left padding and
// appended tokens in one place. Values are clamped to the capacities, so that whatever the device
// arrays hold, no index leaves its tensor.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "core/integer.hpp"

namespace foveal::algorithm {

/// The arrays that lengths come from; null where the problem has none.
struct SeqlenSource {
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* cu_seqlens_k = nullptr;
  const std::int32_t* seqused_q = nullptr;
  const std::int32_t* seqused_k = nullptr;
  const std::int32_t* leftpad_k = nullptr;
  std::int64_t rows_q = 0;      ///< Dense: seqlen_q; packed: total_q.
  std::int64_t rows_k = 0;      ///< Dense: capacity; packed: total_k; paged: max_pages * page_size.
  std::int64_t seqlen_new = 0;  ///< Tokens appended by the same plan before attending.
};

/// One sequence. Key j of the mask is row `k_begin + leftpad_k + j` of its cache or packed tensor.
struct SeqlenInfo {
  std::int64_t q_begin = 0;  ///< First row of q: 0 when dense, cu_seqlens_q[b] when packed.
  std::int64_t k_begin = 0;
  std::int64_t capacity_q = 0;  ///< Rows of q that belong to the sequence, used or not.
  std::int64_t capacity_k = 0;
  std::int64_t seqlen_q = 0;  ///< Effective lengths: what the mask counts.
  std::int64_t seqlen_k = 0;
  std::int64_t leftpad_k = 0;
  std::int64_t seqlen_cache = 0;  ///< Tokens in the cache before the append, left padding included.
};

FOVEAL_HOST_DEVICE constexpr SeqlenInfo seqlen_info(const SeqlenSource& source, std::int64_t b) {
  constexpr std::int64_t kZero = 0;
  SeqlenInfo info;
  info.capacity_q = source.rows_q;
  info.capacity_k = source.rows_k;
  if (source.cu_seqlens_q != nullptr) {
    info.q_begin = clamp_to<std::int64_t>(source.cu_seqlens_q[b], kZero, source.rows_q);
    info.capacity_q =
        clamp_to<std::int64_t>(source.cu_seqlens_q[b + 1], info.q_begin, source.rows_q) -
        info.q_begin;
  }
  if (source.cu_seqlens_k != nullptr) {
    info.k_begin = clamp_to<std::int64_t>(source.cu_seqlens_k[b], kZero, source.rows_k);
    info.capacity_k =
        clamp_to<std::int64_t>(source.cu_seqlens_k[b + 1], info.k_begin, source.rows_k) -
        info.k_begin;
  }
  info.seqlen_q = source.seqused_q == nullptr
                      ? info.capacity_q
                      : clamp_to<std::int64_t>(source.seqused_q[b], kZero, info.capacity_q);
  info.seqlen_cache = source.seqused_k == nullptr
                          ? info.capacity_k
                          : clamp_to<std::int64_t>(source.seqused_k[b], kZero, info.capacity_k);
  const std::int64_t end = min_of(info.seqlen_cache + source.seqlen_new, info.capacity_k);
  if (source.leftpad_k != nullptr) {
    info.leftpad_k = clamp_to<std::int64_t>(source.leftpad_k[b], kZero, end);
  }
  info.seqlen_k = end - info.leftpad_k;
  return info;
}

}  // namespace foveal::algorithm
