#include "tools/problem_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "tools/device_flags.hpp"
#include "tools/tensor_layout.hpp"

namespace foveal::tools {
namespace {

constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max();
/// Packed: their lengths are listed one by one.
constexpr std::int64_t kMaxDocuments = std::int64_t{1} << 24;

Pass pass_of(const std::string& name) {
  for (const Pass pass : {Pass::kBackward, Pass::kAppend, Pass::kMerge}) {
    if (name == pass_name(pass)) return pass;
  }
  return Pass::kForward;
}

/// Builds the problem operand by operand: each function adds what one group of flags asks for.
class ProblemBuilder {
 public:
  ProblemBuilder(const ProblemFlags& flags, const ComputeOptions& options)
      : flags_(flags),
        options_(options),
        dtype_(*dtype_of(flags.dtype)),
        layout_(options.layout.value_or(
            flags.varlen || !flags.doc_lens.empty() ? TensorLayout::kThd : TensorLayout::kBshd)),
        batch_(flags.batch < 0 ? 1 : flags.batch),
        seqlen_k_(flags.seqlen_k < 0 ? std::max<std::int64_t>(1024, flags.seqlen_q)
                                     : flags.seqlen_k),
        seqlen_q_(flags.seqlen_q < 0 ? seqlen_k_ : flags.seqlen_q),
        nheads_k_(flags.nheads_k < 0 ? flags.nheads_q : flags.nheads_k),
        headdim_v_(flags.headdim_v < 0 ? flags.headdim : flags.headdim_v) {}

  Result<FlagProblem> build() {
    FOVEAL_RETURN_IF_ERROR(check_flags());
    FOVEAL_RETURN_IF_ERROR(set_lengths());
    P& problem = made_.problem;
    problem.pass = pass_of(flags_.pass);
    if (problem.pass == Pass::kMerge) {
      add_merge();
    } else {
      add_keys();
      if (problem.pass != Pass::kAppend) add_attention();
      if (problem.pass == Pass::kBackward) add_gradients();
      if (problem.pass == Pass::kAppend || flags_.seqlen_new > 0) add_new_keys();
    }
    AttentionTensors tensors;
    apply_options(options_, problem, tensors);
    if (packed() && problem.pass != Pass::kMerge) set_max_seqlens();
    return std::move(made_);
  }

 private:
  using P = AttentionProblem;

  [[nodiscard]] bool packed() const { return layout_ == TensorLayout::kThd; }
  [[nodiscard]] bool packed_keys() const {
    return packed() && flags_.page_size == 0 && !flags_.seqused_k && flags_.seqlen_new == 0 &&
           flags_.pass != "append";
  }

  /// Flags of which nothing would be seen in the problem.
  Status check_flags() const {
    if (flags_.rotary_dim % 2 != 0) {
      return Status::invalid_argument(fmt::format(
          "--rotary-dim {}: dimensions turn in pairs, so it is even", flags_.rotary_dim));
    }
    if (flags_.rotary_dim > 0 && flags_.seqlen_new == 0 && flags_.pass != "append") {
      return Status::invalid_argument(
          "--rotary-dim turns the tokens of --seqlen-new or --pass append: there are none");
    }
    FOVEAL_RETURN_IF_ERROR(check_flags_of_pass());
    if (options_.max_seqlen && !packed()) {
      return Status::invalid_argument("--max-seqlen is of packed documents: there are none");
    }
    if (flags_.varlen && flags_.batch > kMaxDocuments) {
      return Status::invalid_argument(
          fmt::format("--batch {}: at most {} documents", flags_.batch, kMaxDocuments));
    }
    if (flags_.doc_lens.empty()) {
      if (flags_.doc_lens_k.empty()) return Status::ok();
      return Status::invalid_argument("--doc-lens-k: their queries are those of --doc-lens");
    }
    if (!flags_.doc_lens_k.empty() && !packed_keys()) {
      return Status::invalid_argument(
          "--doc-lens-k: a cache has the capacity of --seqlen-k for each sequence");
    }
    const auto unused = [](const char* flag, const char* instead) {
      return Status::invalid_argument(
          fmt::format("{} beside --doc-lens: {} says it already", flag, instead));
    };
    if (flags_.batch >= 0) return unused("--batch", "the number of documents");
    if (flags_.seqlen_q >= 0) return unused("--seqlen-q", "their list");
    if (flags_.seqlen_k >= 0 && packed_keys()) {
      return unused("--seqlen-k", "--doc-lens-k or --doc-lens");
    }
    return Status::ok();
  }

  /// What only attention has, and what a merge has not.
  Status check_flags_of_pass() const {
    const bool merge = flags_.pass == "merge";
    if (!merge && flags_.pass != "append") return Status::ok();
    const std::pair<const char*, bool> given[] = {
        {"--sinks", flags_.sinks},
        {"--alibi", flags_.alibi},
        {"--bias", flags_.bias != "none"},
        {"--lse", flags_.lse && !merge},
        {"--doc-lens", !flags_.doc_lens.empty() && !merge},
        {"--page-size", flags_.page_size > 0 && merge},
        {"--seqused-k", flags_.seqused_k && merge},
        {"--seqlen-new", flags_.seqlen_new > 0 && merge},
    };
    for (const auto& [flag, is_given] : given) {
      if (!is_given) continue;
      return Status::invalid_argument(
          fmt::format("{}: --pass {} has nothing of it", flag, flags_.pass));
    }
    return Status::ok();
  }

  Status set_lengths() {
    if (!packed()) {
      if (flags_.doc_lens.empty() && !flags_.varlen) return Status::ok();
      return Status::invalid_argument(fmt::format("--layout {}: packed documents have layout thd",
                                                  tensor_layout_name(layout_)));
    }
    const auto count = static_cast<std::size_t>(batch_);
    std::vector<std::int64_t> lens_q = flags_.doc_lens;
    if (lens_q.empty()) lens_q.assign(count, seqlen_q_);
    std::vector<std::int64_t> lens_k = flags_.doc_lens_k;
    if (lens_k.empty() && flags_.doc_lens.empty()) lens_k.assign(count, seqlen_k_);
    if (lens_k.empty()) lens_k = lens_q;
    if (lens_k.size() != lens_q.size()) {
      return Status::invalid_argument(fmt::format("--doc-lens-k has {} lengths: --doc-lens has {}",
                                                  lens_k.size(), lens_q.size()));
    }
    batch_ = static_cast<std::int64_t>(lens_q.size());
    FOVEAL_RETURN_IF_ERROR(accumulate_lengths("--doc-lens", lens_q, made_.cu_seqlens_q));
    return accumulate_lengths("--doc-lens-k", lens_k, made_.cu_seqlens_k);
  }

  static Status accumulate_lengths(const char* name, const std::vector<std::int64_t>& lens,
                                   std::vector<std::int32_t>& cu_seqlens) {
    std::int64_t total = 0;
    cu_seqlens.push_back(0);
    for (const std::int64_t length : lens) {
      total += length;
      if (total > kMaxExtent) {
        return Status::invalid_argument(
            fmt::format("{}: the lengths add up to more than {} tokens", name, kMaxExtent));
      }
      cu_seqlens.push_back(static_cast<std::int32_t>(total));
    }
    return Status::ok();
  }

  static std::int64_t longest(const std::vector<std::int32_t>& cu_seqlens) {
    std::int64_t longest = 0;
    for (std::size_t i = 1; i < cu_seqlens.size(); ++i) {
      longest = std::max<std::int64_t>(longest, cu_seqlens[i] - cu_seqlens[i - 1]);
    }
    return longest;
  }

  /// The flag is an upper bound; without it the longest document is one.
  void set_max_seqlens() {
    P& problem = made_.problem;
    if (problem.q.rank == 3 && !options_.max_seqlen) {
      problem.max_seqlen_q = longest(made_.cu_seqlens_q);
    }
    if (problem.k.rank == 3 && !options_.max_seqlen) {
      problem.max_seqlen_k = longest(made_.cu_seqlens_k);
    }
  }

  [[nodiscard]] TensorSpec dense(DType dtype, std::int64_t batch, std::int64_t seqlen,
                                 std::int64_t heads, std::int64_t dim) const {
    if (layout_ == TensorLayout::kBhsd) {
      const std::int64_t shape[] = {batch, heads, seqlen, dim};
      return heads_first(dtype, shape);
    }
    return TensorSpec::contiguous(dtype, {batch, seqlen, heads, dim});
  }

  [[nodiscard]] TensorSpec rows(DType dtype, std::int64_t dim) const {
    if (packed()) {
      return TensorSpec::contiguous(dtype, {made_.cu_seqlens_q.back(), flags_.nheads_q, dim});
    }
    return dense(dtype, batch_, seqlen_q_, flags_.nheads_q, dim);
  }

  [[nodiscard]] TensorSpec row_stats() const {
    if (packed()) {
      return TensorSpec::contiguous(DType::kFloat32, {flags_.nheads_q, made_.cu_seqlens_q.back()});
    }
    return TensorSpec::contiguous(DType::kFloat32, {batch_, flags_.nheads_q, seqlen_q_});
  }

  [[nodiscard]] TensorSpec int32(std::int64_t count) const {
    return TensorSpec::contiguous(DType::kInt32, {count});
  }

  [[nodiscard]] DType out_dtype() const {
    return flags_.out_dtype.empty() ? dtype_ : *dtype_of(flags_.out_dtype);
  }

  void add_keys() {
    P& problem = made_.problem;
    if (packed_keys()) {
      const std::int64_t total = made_.cu_seqlens_k.back();
      problem.k = TensorSpec::contiguous(dtype_, {total, nheads_k_, flags_.headdim});
      problem.v = TensorSpec::contiguous(dtype_, {total, nheads_k_, headdim_v_});
      problem.cu_seqlens_k = int32(batch_ + 1);
      return;
    }
    if (flags_.page_size > 0) {
      const std::int64_t pages = (seqlen_k_ + flags_.page_size - 1) / flags_.page_size;
      const std::int64_t pool = batch_ * pages;
      problem.k =
          TensorSpec::contiguous(dtype_, {pool, flags_.page_size, nheads_k_, flags_.headdim});
      problem.v = TensorSpec::contiguous(dtype_, {pool, flags_.page_size, nheads_k_, headdim_v_});
      problem.block_table = TensorSpec::contiguous(DType::kInt32, {batch_, pages});
    } else {
      problem.k = dense(dtype_, batch_, seqlen_k_, nheads_k_, flags_.headdim);
      problem.v = dense(dtype_, batch_, seqlen_k_, nheads_k_, headdim_v_);
    }
    if (flags_.page_size > 0 || flags_.seqused_k || flags_.seqlen_new > 0) {
      problem.seqused_k = int32(batch_);
    }
  }

  void add_attention() {
    P& problem = made_.problem;
    problem.q = rows(dtype_, flags_.headdim);
    problem.out = rows(out_dtype(), headdim_v_);
    if (flags_.lse || problem.pass == Pass::kBackward) problem.lse = row_stats();
    if (packed()) problem.cu_seqlens_q = int32(batch_ + 1);
    if (flags_.sinks) problem.sinks = TensorSpec::contiguous(DType::kFloat32, {flags_.nheads_q});
    if (flags_.alibi) {
      problem.alibi_slopes = TensorSpec::contiguous(DType::kFloat32, {flags_.nheads_q});
    }
    if (flags_.bias != "none") {
      problem.bias = TensorSpec::contiguous(flags_.bias == "mask" ? DType::kBool : dtype_,
                                            {batch_, flags_.nheads_q, seqlen_q_, seqlen_k_});
    }
  }

  void add_gradients() {
    P& problem = made_.problem;
    problem.dout = problem.out;
    problem.dq = problem.q;
    problem.dk = problem.k;
    problem.dv = problem.v;
    problem.dsinks = problem.sinks;
    if (problem.bias.dtype != DType::kBool) problem.dbias = problem.bias;
  }

  void add_new_keys() {
    P& problem = made_.problem;
    const std::int64_t count = std::max<std::int64_t>(flags_.seqlen_new, 1);
    problem.k_new = dense(dtype_, batch_, count, nheads_k_, flags_.headdim);
    problem.v_new = dense(dtype_, batch_, count, nheads_k_, headdim_v_);
    problem.seqused_k = int32(batch_);
    if (flags_.rotary_dim == 0) return;
    problem.rotary_cos =
        TensorSpec::contiguous(DType::kFloat32, {seqlen_k_, flags_.rotary_dim / 2});
    problem.rotary_sin = problem.rotary_cos;
  }

  void add_merge() {
    P& problem = made_.problem;
    problem.out = problem.out_a = problem.out_b = rows(out_dtype(), headdim_v_);
    problem.lse_a = problem.lse_b = row_stats();
    if (flags_.lse) problem.lse = row_stats();
  }

  const ProblemFlags& flags_;
  const ComputeOptions& options_;
  DType dtype_;
  TensorLayout layout_;
  std::int64_t batch_;
  std::int64_t seqlen_k_;
  std::int64_t seqlen_q_;
  std::int64_t nheads_k_;
  std::int64_t headdim_v_;
  FlagProblem made_;
};

/// Adds one flag after another, under one heading of the help.
class FlagAdder {
 public:
  explicit FlagAdder(CLI::App& command) : command_(command) {}

  void count(const char* flag, std::int64_t& value, const char* help, std::int64_t least = 0) {
    keep(command_.add_option(flag, value, help)
             ->check(decimal())
             ->check(extent(least))
             ->type_name("N"));
  }
  void lengths(const char* flag, std::vector<std::int64_t>& values, const char* help) {
    keep(command_.add_option(flag, values, help)
             ->delimiter(',')
             ->check(decimal())
             ->check(extent(0))
             ->type_name("N,N,..."));
  }
  void word(const char* flag, std::string& value, std::vector<std::string> words,
            const char* help) {
    const std::string type = fmt::format("{}", fmt::join(words, "|"));
    keep(command_.add_option(flag, value, help)
             ->type_name(type)
             ->check(CLI::IsMember(std::move(words)).description("")));
  }
  void flag(const char* name, bool& value, const char* help) {
    keep(command_.add_flag(name, value, help)->disable_flag_override());
  }

  [[nodiscard]] std::vector<const CLI::Option*> take() { return std::move(added_); }

 private:
  /// Without the text that CLI11 would put into every line of the help.
  static CLI::Validator extent(std::int64_t least) {
    return CLI::Range(least, kMaxExtent).description("");
  }
  /// CLI11 would read 010 as eight and take 0x40.
  static CLI::Validator decimal() {
    const auto refusal = [](const std::string& text) {
      const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
      const bool plain = digits && (text.size() == 1 || text.front() != '0');
      return plain || text.front() == '-' ? std::string()
                                          : text + " is no decimal number, or begins with 0";
    };
    return CLI::Validator(refusal, "");
  }
  void keep(CLI::Option* option) { added_.push_back(option->group("The problem")); }

  CLI::App& command_;
  std::vector<const CLI::Option*> added_;
};

}  // namespace

std::vector<const CLI::Option*> add_problem_flags(CLI::App& command, ProblemFlags& flags) {
  FlagAdder add(command);
  add.word("--pass", flags.pass, {"forward", "backward", "append", "merge"},
           "What is computed; forward without it");
  add.count("--batch", flags.batch, "Sequences; 1 without it");
  add.count("--seqlen-q", flags.seqlen_q, "Queries of each; as --seqlen-k without it");
  add.count("--seqlen-k", flags.seqlen_k,
            "Keys of each, or the cache's capacity; as --seqlen-q without it, 1024 at least");
  add.count("--nheads-q", flags.nheads_q, "Query heads; 16 without it");
  add.count("--nheads-k", flags.nheads_k, "Key/value heads; as --nheads-q without it");
  add.count("--headdim", flags.headdim, "Of q and k; 128 without it");
  add.count("--headdim-v", flags.headdim_v, "Of v; as --headdim without it");
  add.word("--dtype", flags.dtype, {"fp16", "bf16", "fp32"}, "Of q, k and v; fp16 without it");
  add.word("--out-dtype", flags.out_dtype, {"fp16", "bf16", "fp32"},
           "Of out; as --dtype without it");
  add.flag("--varlen", flags.varlen, "Packed: --batch documents of --seqlen-q and --seqlen-k");
  add.lengths("--doc-lens", flags.doc_lens, "Packed documents of these lengths");
  add.lengths("--doc-lens-k", flags.doc_lens_k, "Their keys; as --doc-lens without it");
  add.count("--page-size", flags.page_size, "A paged cache with pages of so many keys", 1);
  add.flag("--seqused-k", flags.seqused_k, "A cache with lengths of its own");
  add.count("--seqlen-new", flags.seqlen_new, "Tokens to append to the cache first");
  add.count("--rotary-dim", flags.rotary_dim, "Rotary embedding of the appended keys and of q", 2);
  add.word("--bias", flags.bias, {"none", "float", "mask"}, "A full bias; none without it");
  add.flag("--sinks", flags.sinks, "One sink logit a query head");
  add.flag("--alibi", flags.alibi, "ALiBi slopes");
  add.flag("--lse", flags.lse, "Ask for the lse too");
  return add.take();
}

Result<FlagProblem> problem_from_flags(const ProblemFlags& flags, const ComputeOptions& options) {
  return ProblemBuilder(flags, options).build();
}

}  // namespace foveal::tools
