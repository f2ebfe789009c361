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
template <class Integer>
struct BasicSeqlenInfo {
  Integer q_begin = 0;  ///< First row of q: 0 when dense, cu_seqlens_q[b] when packed.
  Integer k_begin = 0;
  Integer capacity_q = 0;  ///< Rows of q that belong to the sequence, used or not.
  Integer capacity_k = 0;
  Integer seqlen_q = 0;  ///< Effective lengths: what the mask counts.
  Integer seqlen_k = 0;
  Integer leftpad_k = 0;
  Integer seqlen_cache = 0;  ///< Tokens in the cache before the append, left padding included.
};
using SeqlenInfo = BasicSeqlenInfo<std::int64_t>;

/// In 32 bits where the rows of q and k fit.
template <class Integer>
FOVEAL_HOST_DEVICE constexpr BasicSeqlenInfo<Integer> basic_seqlen_info(const SeqlenSource& source,
                                                                        std::int64_t b) {
  constexpr Integer kZero = 0;
  const auto rows_q = static_cast<Integer>(source.rows_q);
  const auto rows_k = static_cast<Integer>(source.rows_k);
  BasicSeqlenInfo<Integer> info;
  info.capacity_q = rows_q;
  info.capacity_k = rows_k;
  if (source.cu_seqlens_q != nullptr) {
    info.q_begin = clamp_to<Integer>(source.cu_seqlens_q[b], kZero, rows_q);
    info.capacity_q =
        clamp_to<Integer>(source.cu_seqlens_q[b + 1], info.q_begin, rows_q) - info.q_begin;
  }
  if (source.cu_seqlens_k != nullptr) {
    info.k_begin = clamp_to<Integer>(source.cu_seqlens_k[b], kZero, rows_k);
    info.capacity_k =
        clamp_to<Integer>(source.cu_seqlens_k[b + 1], info.k_begin, rows_k) - info.k_begin;
  }
  info.seqlen_q = source.seqused_q == nullptr
                      ? info.capacity_q
                      : clamp_to<Integer>(source.seqused_q[b], kZero, info.capacity_q);
  info.seqlen_cache = source.seqused_k == nullptr
                          ? info.capacity_k
                          : clamp_to<Integer>(source.seqused_k[b], kZero, info.capacity_k);
  const Integer end =
      min_of(info.seqlen_cache + static_cast<Integer>(source.seqlen_new), info.capacity_k);
  if (source.leftpad_k != nullptr) {
    info.leftpad_k = clamp_to<Integer>(source.leftpad_k[b], kZero, end);
  }
  info.seqlen_k = end - info.leftpad_k;
  return info;
}
FOVEAL_HOST_DEVICE constexpr SeqlenInfo seqlen_info(const SeqlenSource& source, std::int64_t b) {
  return basic_seqlen_info<std::int64_t>(source, b);
}

}  // namespace foveal::algorithm
