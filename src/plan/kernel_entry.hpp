// What a kernel tells the planner. A kernel is its folder plus one entry in kernel_table.cpp; the
// planner, explain, devices, the tests and the docs follow from the entry.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <foveal/device.hpp>
#include <foveal/plan.hpp>
#include <foveal/problem.hpp>
#include <foveal/status.hpp>

#include "problem/geometry.hpp"

namespace foveal::planner {

struct TileShape {
  std::int64_t m = 0;  ///< Query rows (packed over the heads of a KV group where pack_gqa).
  std::int64_t n = 0;  ///< Keys.
};

/// What configure() decided: plain numbers that are printed by explain and obeyed by launch(). A
/// kernel sets what it uses.
struct KernelConfig {
  TileShape tile;
  std::int64_t num_splits = 1;  ///< Of the keys; > 1 needs a merge.
  std::int64_t split_keys = 0;  ///< Fixed keys a split (batch_invariant); 0: by num_splits.
  std::int64_t num_stages = 0;
  std::int64_t num_chunks = 1;    ///< CUDA: pieces that a block of keys arrives in.
  std::int64_t num_threads = 0;   ///< CPU: workers. CUDA: threads a block.
  std::int64_t num_blocks = 0;    ///< CUDA: blocks that share all work evenly; 0: one a tile.
  std::int64_t cluster_size = 1;  ///< CUDA: blocks of a cluster.
  bool pack_gqa = false;
  std::int64_t heads_per_item = 1;  ///< CPU: KV heads that a worker takes in turn, block by block.
  std::string isa;  ///< CPU: the instruction set that its arithmetic runs on; empty: any.
  std::vector<WorkspacePart> workspace;  ///< In order; each begins at kWorkspaceAlignment.
  std::vector<std::string> notes;        ///< For explain.
  /// Of the kernel that runs in this one's place where pointers are not as this one needs them,
  /// which only the launch sees; at most one.
  std::vector<KernelConfig> stand_in;

  [[nodiscard]] std::int64_t workspace_bytes() const;
  /// Offset of part `index` in the workspace, in bytes.
  [[nodiscard]] std::int64_t workspace_offset(std::size_t index) const;
};

/// All that a launch needs; everything but tensors, workspace and stream comes from the plan.
struct LaunchContext {
  const AttentionProblem& problem;
  const AttentionGeometry& geometry;
  const KernelConfig& config;
  const AttentionTensors& tensors;
  std::byte* workspace;
  void* stream;

  /// Part `index` of the workspace.
  template <class T>
  [[nodiscard]] T* workspace_part(std::size_t index) const {
    return reinterpret_cast<T*>(workspace + config.workspace_offset(index));
  }
};

struct KernelEntry {
  const char* name;
  const char* summary;
  Pass pass;
  DeviceType device;

  /// Whether a device can run it at all; kUnsupported with the sentence why not.
  Status (*usable)(const DeviceInfo& device);
  /// Whether it takes the problem; called only for a valid problem of its pass on a usable device.
  Status (*supports)(const AttentionProblem& problem, const AttentionGeometry& geometry,
                     const DeviceInfo& device);
  KernelConfig (*configure)(const AttentionProblem& problem, const AttentionGeometry& geometry,
                            const DeviceInfo& device);
  /// Microseconds, from the roofline and the kernel's measured efficiency.
  double (*predict)(const AttentionProblem& problem, const AttentionGeometry& geometry,
                    const KernelConfig& config, const DeviceInfo& device);
  /// Null in a build without the kernel's device code: such a kernel can be explained, not run.
  Status (*launch)(const LaunchContext& context);
  /// Whether it runs only where FOVEAL_FORCE_KERNEL names it: a kernel that has not yet passed the
  /// whole generated grid on its device.
  bool held_back = false;
};

}  // namespace foveal::planner
