// Bench manifests: which attention workloads to time, how right they must be and what the gates
// are. bench/manifests/README.md describes the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

namespace foveal::tools {

/// What the gates ask of a workload.
enum class WorkloadRole : std::uint8_t {
  kTarget,     ///< must become faster
  kProtected,  ///< must not become slower or larger
  kGuard,      ///< as protected; there for a layout rather than a speed
  kInfo,       ///< must be right; its time is shown
};

/// What one timed call computes.
enum class WorkloadPass : std::uint8_t {
  kForward,
  kBackward,  ///< from out and lse that are there already
  kTrain,     ///< forward, then backward
};

/// How q, k and v lie in memory.
enum class WorkloadLayout : std::uint8_t {
  kBshd,       ///< [batch, seqlen, heads, headdim]
  kBhsd,       ///< [batch, heads, seqlen, headdim]
  kThd,        ///< documents packed one behind the other: [total, heads, headdim]
  kPackedQkv,  ///< q, k, v are slices of one [batch, seqlen, nheads_q + 2 * nheads_k, headdim]
  kPaged,      ///< q as bshd; k and v [num_pages, page_size, nheads_k, headdim], pages shuffled
};

std::string_view role_name(WorkloadRole role);
std::string_view workload_pass_name(WorkloadPass pass);
std::string_view layout_name(WorkloadLayout layout);

/// One attention call, independent of who computes it.
struct Workload {
  std::string id;
  WorkloadRole role = WorkloadRole::kInfo;
  WorkloadPass pass = WorkloadPass::kForward;
  WorkloadLayout layout = WorkloadLayout::kBshd;
  DType dtype = DType::kNone;

  std::int64_t batch = 0;     ///< thd: the number of documents
  std::int64_t nheads_q = 0;  ///< a multiple of nheads_k
  std::int64_t nheads_k = 0;
  std::int64_t seqlen_q = 0;  ///< thd: of the longest document
  std::int64_t seqlen_k = 0;  ///< the capacity, where seqused_k says how much of it is valid
  std::int64_t headdim = 0;

  bool causal = false;                 ///< aligned bottom right
  std::int64_t window_size_left = -1;  ///< inclusive; -1 is unbounded
  std::int64_t window_size_right = -1;
  double softcap = 0;            ///< 0 is off
  bool sinks = false;            ///< one logit per query head
  bool deterministic = false;    ///< gradients bitwise equal from run to run
  bool batch_invariant = false;  ///< a sequence's bits don't depend on its batch

  std::vector<std::int64_t> doc_lens;   ///< thd: of each document, as queries and as keys
  std::vector<std::int64_t> seqused_k;  ///< valid keys of each sequence; empty: all of seqlen_k
  std::int64_t page_size = 0;           ///< paged: a sequence has ceil(seqlen_k / page_size) pages
  std::uint64_t seed = 0;               ///< of the random inputs

  /// Effective lengths of sequence (or document) `b`.
  [[nodiscard]] std::int64_t queries_of(std::int64_t b) const;
  [[nodiscard]] std::int64_t keys_of(std::int64_t b) const;
  /// Rows of q over all sequences.
  [[nodiscard]] std::int64_t total_q() const;
};

struct AccuracyLimits {
  double rel_frobenius;  ///< ||got - oracle|| / ||oracle||
  double max_abs;        ///< of got - oracle, element by element
};

/// docs/numerics.md, unless the manifest says otherwise.
struct Accuracy {
  AccuracyLimits fp16{.rel_frobenius = 0.005, .max_abs = 0.05};
  AccuracyLimits bf16{.rel_frobenius = 0.01, .max_abs = 0.05};
  AccuracyLimits fp32{.rel_frobenius = 1e-5, .max_abs = 1e-4};

  [[nodiscard]] const AccuracyLimits& of(DType dtype) const;
};

/// Fractions of the base's figure; `foveal compare` adds the calibrated noise.
struct Gates {
  double improve = 0.05;            ///< targets: at least so much less time
  double protected_latency = 0.05;  ///< protected: at most so much more time
  double protected_memory = 0.02;   ///< protected: at most so much more peak memory
};

struct Manifest {
  std::string name;
  std::string description;
  Accuracy accuracy;
  Gates gates;
  std::vector<Workload> workloads;  ///< at least one; ids are distinct
};

/// `source` begins each message. Paths inside the text are relative to `base_directory`; an empty
/// one refuses them.
Result<Manifest> parse_manifest(std::string_view text, const std::string& source,
                                const std::string& base_directory);

/// Reads the file; paths inside are relative to its directory.
Result<Manifest> load_manifest(const std::string& path);

}  // namespace foveal::tools
