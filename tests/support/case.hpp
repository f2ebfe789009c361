// A test problem as a plain struct that prints as one line and is read back from it: what a failing
// test prints replays with FOVEAL_REPLAY='<line>' foveal_kernel_tests.
//
//   forward dtype=fp16 lens=3/8,0/5 q=packed k=packed hk=2 group=6 d=64 causal=1
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <foveal/problem.hpp>

namespace foveal::test {

/// Effective lengths of one sequence: what the mask counts, appended tokens included.
struct SeqLens {
  std::int64_t q = 0;
  std::int64_t k = 0;
  bool operator==(const SeqLens&) const = default;
};

/// How the queries lie: `kUsed` and `kPackedUsed` have seqused_q and rows that are not in use.
enum class QForm { kDense, kUsed, kPacked, kPackedUsed };

/// How the keys lie. `kCache` has seqused_k; `kPaged` has that and a block table.
enum class KForm { kDense, kCache, kPacked, kPackedUsed, kPaged };

/// Where the elements of a tensor lie in memory.
enum class Layout {
  kBshd,            ///< As described, without gaps.
  kBhsd,            ///< Heads outside the sequence.
  kPackedSlice,     ///< A slice of a tensor that holds three as wide, as q of a packed qkv.
  kDimOutermost,    ///< [batch, heads, dim, seqlen]: the last dimension is not contiguous.
  kExpandedHeads,   ///< One head, expanded: stride 0. Inputs only.
  kExpandedBatch,   ///< One batch entry or packed row, expanded. Inputs only.
  kExpandedAll,     ///< One element for all: what out.sum().backward() hands over. Inputs only.
  kReversed,        ///< The sequence backwards: a negative stride.
  kMisaligned,      ///< One element into its storage.
  kPadded,          ///< Odd strides with gaps in every dimension.
  kOddUnitStrides,  ///< Dimensions of size 1 have a stride of 7.
};

enum class BiasKind { kNone, kSameDtype, kFloat32, kMask };
enum class AlibiKind { kNone, kHeads, kBatchHeads };
enum class Rotary { kNone, kHalves, kInterleaved };

/// What lies in memory that no result may depend on.
enum class Poison { kNan, kInfinity, kHuge, kZero };

struct Case {
  std::string kernel;  ///< Empty or `cuda`: whatever the planner chooses on the CPU, on the GPU.
  Pass pass = Pass::kForward;
  DType dtype = DType::kFloat32;
  bool fp32_out = false;  ///< out (dout) in fp32 where dtype is narrower.
  bool fp32_grads = false;

  std::vector<SeqLens> lens = {{1, 1}};  ///< One a sequence; empty: an empty batch.
  QForm q_form = QForm::kDense;
  KForm k_form = KForm::kDense;
  std::int64_t slack_q = 0;  ///< Rows of q beyond the longest sequence's (kUsed, kPackedUsed).
  std::int64_t slack_k = 0;  ///< Slots of a cache beyond the longest sequence's.
  std::int64_t page_size = 16;
  std::int64_t leftpad = 0;  ///< Largest left padding; the sequences have different ones.
  bool cache_batch_idx = false;
  bool loose_max_seqlen = false;  ///< max_seqlen_q/k above the longest; else exact or absent.

  std::int64_t nheads_k = 1;
  std::int64_t group = 1;  ///< Query heads to a KV head.
  std::int64_t headdim = 64;

  bool causal = false;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  float scale = 0;  ///< 0: the default.
  float softcap = 0;
  bool sinks = false;
  BiasKind bias = BiasKind::kNone;
  std::string bias_shape = "bhqk";  ///< '1' in place of a letter: broadcast over that dimension.
  AlibiKind alibi = AlibiKind::kNone;
  float dropout = 0;

  std::int64_t append = 0;  ///< Tokens appended to each sequence; they count in SeqLens::k.
  Rotary rotary = Rotary::kNone;
  std::int64_t rotary_dim = 0;
  bool rotary_fp32 = false;

  Layout q_layout = Layout::kBshd;    ///< Of q, and of k_new's and dout's kind of input.
  Layout kv_layout = Layout::kBshd;   ///< Of k and v.
  Layout out_layout = Layout::kBshd;  ///< Of out and every gradient.

  bool lse = true;  ///< Asked of a forward pass; a backward pass always has it.
  bool dlse = false;
  bool dq = true, dk = true, dv = true;
  bool dbias = false;
  bool dsinks = false;
  bool deterministic = false;
  bool batch_invariant = false;
  std::int64_t num_threads = 1;
  Poison poison = Poison::kNan;
  std::uint64_t seed = 1;

  [[nodiscard]] std::int64_t batch() const { return static_cast<std::int64_t>(lens.size()); }
  [[nodiscard]] std::int64_t nheads_q() const { return nheads_k * group; }
  [[nodiscard]] bool packed_q() const {
    return q_form == QForm::kPacked || q_form == QForm::kPackedUsed;
  }
  [[nodiscard]] bool packed_k() const {
    return k_form == KForm::kPacked || k_form == KForm::kPackedUsed;
  }
  [[nodiscard]] bool is_16_bit() const { return dtype != DType::kFloat32; }
  /// Whether row i of a sequence sees its key j: causal, window and lengths, straight from the
  /// contract. (Written apart from src/algorithm on purpose: a checker that shares the mask of the
  /// kernels would share its faults.)
  [[nodiscard]] bool sees(const SeqLens& one, std::int64_t i, std::int64_t j) const;
  /// Query-key pairs over all heads times the head size: the cost of a reference run.
  [[nodiscard]] double work() const;

  bool operator==(const Case&) const = default;
};

/// One line without the defaults; the pass comes first.
[[nodiscard]] std::string to_line(const Case& c);

/// The case of a line; absent, with `error` set, where a word of it can't be read.
[[nodiscard]] std::optional<Case> parse_case(std::string_view line, std::string& error);

std::ostream& operator<<(std::ostream& stream, const Case& c);

}  // namespace foveal::test
