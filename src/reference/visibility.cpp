#include "reference/visibility.hpp"

#include <algorithm>

namespace foveal::reference {

Sequence sequence_of(const Inputs& inputs, std::int64_t b) {
  Sequence sequence;
  sequence.b = b;
  if (inputs.cu_seqlens_q.present()) {
    sequence.q_begin = inputs.cu_seqlens_q.integer_at(b);
    sequence.rows_q = inputs.cu_seqlens_q.integer_at(b + 1) - sequence.q_begin;
  } else {
    sequence.rows_q = inputs.q.present() ? inputs.q.extent(1) : 0;
  }
  sequence.seqlen_q = inputs.seqused_q.present() ? inputs.seqused_q.integer_at(b) : sequence.rows_q;

  std::int64_t capacity_k = inputs.k.extent(1);
  if (inputs.cu_seqlens_k.present()) {
    sequence.k_begin = inputs.cu_seqlens_k.integer_at(b);
    capacity_k = inputs.cu_seqlens_k.integer_at(b + 1) - sequence.k_begin;
  } else if (inputs.block_table.present()) {
    capacity_k = inputs.block_table.extent(1) * inputs.k.extent(1);
  }
  sequence.cache_row = inputs.cache_batch_idx.present() ? inputs.cache_batch_idx.integer_at(b) : b;
  sequence.seqlen_cache = inputs.seqused_k.present() ? inputs.seqused_k.integer_at(b) : capacity_k;
  sequence.seqlen_new = inputs.k_new.present() ? inputs.k_new.extent(1) : 0;
  sequence.leftpad_k = inputs.leftpad_k.present() ? inputs.leftpad_k.integer_at(b) : 0;
  sequence.seqlen_k =
      std::max<std::int64_t>(0, sequence.seqlen_cache + sequence.seqlen_new - sequence.leftpad_k);
  return sequence;
}

}  // namespace foveal::reference
