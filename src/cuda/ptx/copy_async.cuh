// Copies from global to shared memory that a thread does not wait for (sm_80 and newer).
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// The address of shared memory as instructions take it.
FOVEAL_DEVICE std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// One 16-bit element into shared memory.
template <class Element>
FOVEAL_DEVICE void store_shared(std::uint32_t address, Element value) {
  static_assert(sizeof(Element) == 2);
  asm volatile("st.shared.b16 [%0], %1;\n" ::"r"(address),
               "h"(reinterpret_cast<const std::uint16_t&>(value))
               : "memory");
}

/// 16 bytes, both addresses aligned to 16, past L1.
FOVEAL_DEVICE void copy_async_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from) : "memory");
}

/// The same with a condition: with `valid` false 16 bytes of zero arrive and
/// `from` is not read, though it must be an address within an allocation.
FOVEAL_DEVICE void copy_async_16(std::uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

/// A hint that what is read is not read again soon: it makes room in L2 before anything else does.
FOVEAL_DEVICE std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}

/// The conditional copy with a hint for L2.
FOVEAL_DEVICE void copy_async_16(std::uint32_t to, const void* from, bool valid,
                                 std::uint64_t policy) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;\n" ::"r"(to),
               "l"(from), "r"(bytes), "l"(policy)
               : "memory");
}

/// Closes the group of the calling thread's copies since the last commit; it may be empty.
FOVEAL_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

/// Waits until at most the kPending youngest groups of the calling thread are under way. Other
/// threads see the bytes after a barrier that follows.
template <int kPending>
FOVEAL_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace foveal::cuda::ptx
