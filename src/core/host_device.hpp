// One source for host and device code.
#pragma once

#if defined(__CUDACC__)
#define FOVEAL_HOST_DEVICE __host__ __device__
#define FOVEAL_DEVICE __device__ __forceinline__
#else
#define FOVEAL_HOST_DEVICE
#endif

// For our own mistakes, in debug builds; what a caller did wrong is a Status.
#if defined(NDEBUG)
// Not evaluated, but what it names counts as used.
#define FOVEAL_ASSERT(condition) static_cast<void>(sizeof(!(condition)))
#else
#include <cassert>
#define FOVEAL_ASSERT(condition) assert(condition)
#endif
