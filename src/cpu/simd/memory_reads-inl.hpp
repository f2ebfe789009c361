// Rows of k and v where they lie, vector by vector, while the second-level cache is asked for the
// rows that come next, line by line.

#if defined(FOVEAL_CPU_SIMD_MEMORY_READS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEAL_CPU_SIMD_MEMORY_READS_INL_HPP
#undef FOVEAL_CPU_SIMD_MEMORY_READS_INL_HPP
#else
#define FOVEAL_CPU_SIMD_MEMORY_READS_INL_HPP
#endif

#include <atomic>

#include "core/half.hpp"
#include "cpu/prefetch.hpp"
#include "cpu/simd/convert-inl.hpp"
#include "cpu/simd/lanes-inl.hpp"
#include "cpu/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace foveal::cpu::simd::HWY_NAMESPACE {
namespace {

/// A vector of elements from element `index` of a row.
template <class T>
HWY_INLINE Floats load_memory(const std::byte* row, std::int64_t index) {
  return widen(T{}, load_words(row + index * 2));
}
template <>
HWY_INLINE Floats load_memory<float>(const std::byte* row, std::int64_t index) {
  const hn::Repartition<std::uint8_t, FloatTag> bytes;
  return hn::BitCast(FloatTag(),
                     hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(row) + index * 4));
}

/// Asks the second-level cache for the lines of a row that is read later, a few with each few that
/// are used: all together they would take up what a core may have under way. Rows of one head are
/// often a multiple of 4 KiB apart: in the first level they would drive each other out.
class Prefetcher {
 public:
  Prefetcher() = default;
  /// While row j is used.
  Prefetcher(const MemoryRows& b, std::int64_t j) : row_(b.row_ahead(j)) {}

  /// The lines that begin in the Bytes bytes from byte `begin` on.
  template <int Bytes>
  HWY_INLINE void fetch(std::int64_t begin) const {
#pragma GCC unroll 8
    for (int byte = 0; byte < Bytes; byte += kCacheLineBytes) {
      prefetch(row_ + begin + byte);
    }
  }

 private:
  const std::byte* row_ = nullptr;
};

/// What was loaded before stays in its register: the compiler takes an operand from memory once for
/// every use of it, which a core can do no more often than multiply.
HWY_INLINE void keep_loaded() { std::atomic_signal_fence(std::memory_order_seq_cst); }

}  // namespace
}  // namespace foveal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
