#include "tools/manifest_workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <span>
#include <utility>

#include "tools/doc_lens.hpp"
#include "tools/json_fields.hpp"
#include "tools/mapped_file.hpp"
#include "tools/message_text.hpp"

namespace foveal::tools {
namespace {

using nlohmann::json;

constexpr std::array kRoles{Word{"target", WorkloadRole::kTarget},
                            Word{"protected", WorkloadRole::kProtected},
                            Word{"guard", WorkloadRole::kGuard}, Word{"info", WorkloadRole::kInfo}};
constexpr std::array kPasses{Word{"forward", WorkloadPass::kForward},
                             Word{"backward", WorkloadPass::kBackward},
                             Word{"train", WorkloadPass::kTrain}};
constexpr std::array kLayouts{
    Word{"bshd", WorkloadLayout::kBshd}, Word{"bhsd", WorkloadLayout::kBhsd},
    Word{"thd", WorkloadLayout::kThd}, Word{"packed_qkv", WorkloadLayout::kPackedQkv},
    Word{"paged", WorkloadLayout::kPaged}};
constexpr std::array kDTypes{Word{dtype_name(DType::kFloat16), DType::kFloat16},
                             Word{dtype_name(DType::kBFloat16), DType::kBFloat16},
                             Word{dtype_name(DType::kFloat32), DType::kFloat32}};

template <class Enum, std::size_t kCount>
std::string_view word_of(const std::array<Word<Enum>, kCount>& words, Enum value) {
  const auto found = std::find_if(words.begin(), words.end(),
                                  [&](const Word<Enum>& word) { return word.value == value; });
  return found == words.end() ? std::string_view("unknown") : found->word;
}

template <class Enum, std::size_t kCount>
std::span<const Word<Enum>> all(const std::array<Word<Enum>, kCount>& words) {
  return words;
}

constexpr IntRange kDimension{1, kMaxWorkloadDimension};
constexpr IntRange kLength{0, kMaxTotalLength};

/// Reads one workload, group of fields by group of fields.
class WorkloadReader {
 public:
  WorkloadReader(JsonFields fields, const std::string& source, const std::string& base_directory)
      : fields_(std::move(fields)), source_(source), base_directory_(base_directory) {}

  Result<Workload> read() {
    FOVEAL_RETURN_IF_ERROR(fields_.allow(
        {"id",        "role",      "pass",     "layout",        "dtype",           "batch",
         "nheads_q",  "nheads_k",  "seqlen_q", "seqlen_k",      "headdim",         "causal",
         "window",    "softcap",   "sinks",    "deterministic", "batch_invariant", "doc_lens",
         "seqused_k", "page_size", "seed"}));
    FOVEAL_RETURN_IF_ERROR(fields_.require(
        {"id", "role", "pass", "layout", "dtype", "nheads_q", "nheads_k", "headdim"}));
    FOVEAL_RETURN_IF_ERROR(read_id());
    FOVEAL_RETURN_IF_ERROR(read_kind());
    FOVEAL_RETURN_IF_ERROR(read_heads());
    FOVEAL_RETURN_IF_ERROR(read_options());
    FOVEAL_RETURN_IF_ERROR(read_layout());
    FOVEAL_RETURN_IF_ERROR(check_sizes());
    return std::move(workload_);
  }

 private:
  Status read_id();
  Status read_kind();
  Status read_heads();
  Status read_options();
  Status read_layout();
  Status read_packed_documents();
  Status read_packed_qkv();
  Status read_sequences();
  Status check_seqused_k() const;
  Status check_sizes() const;
  Status read_lengths(std::string_view key, std::vector<std::int64_t>& lengths) const;
  Result<std::vector<std::int64_t>> referenced_lengths(std::string_view key) const;
  Status refuse_with_layout(std::initializer_list<std::string_view> keys) const;
  [[nodiscard]] Status error(std::string_view why) const {
    return Status::invalid_argument(fmt::format("{}: {}", fields_.where(), why));
  }

  JsonFields fields_;
  const std::string& source_;
  const std::string& base_directory_;
  Workload workload_;
};

Status WorkloadReader::read_id() {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./";
  std::string& id = workload_.id;
  FOVEAL_RETURN_IF_ERROR(fields_.get("id", id));
  if (id.empty() || id.size() > kMaxWorkloadIdBytes ||
      id.find_first_not_of(kAllowed) != std::string::npos) {
    return fields_.refuse("id", fmt::format("must be 1 to {} of the characters A-Z a-z 0-9 - _ . /",
                                            kMaxWorkloadIdBytes));
  }
  fields_.rename(fmt::format("{}: workload {}", source_, in_quotes(id)));
  return Status::ok();
}

Status WorkloadReader::read_kind() {
  FOVEAL_RETURN_IF_ERROR(fields_.get("role", all(kRoles), workload_.role));
  FOVEAL_RETURN_IF_ERROR(fields_.get("pass", all(kPasses), workload_.pass));
  FOVEAL_RETURN_IF_ERROR(fields_.get("layout", all(kLayouts), workload_.layout));
  return fields_.get("dtype", all(kDTypes), workload_.dtype);
}

Status WorkloadReader::read_heads() {
  FOVEAL_RETURN_IF_ERROR(fields_.get("nheads_q", kDimension, workload_.nheads_q));
  FOVEAL_RETURN_IF_ERROR(fields_.get("nheads_k", kDimension, workload_.nheads_k));
  if (workload_.nheads_q % workload_.nheads_k != 0) {
    return fields_.refuse("nheads_q",
                          fmt::format("must be a multiple of nheads_k {}", workload_.nheads_k));
  }
  return fields_.get("headdim", IntRange{1, kMaxWorkloadHeaddim}, workload_.headdim);
}

Status WorkloadReader::read_options() {
  FOVEAL_RETURN_IF_ERROR(fields_.get("causal", workload_.causal));
  FOVEAL_RETURN_IF_ERROR(fields_.get("sinks", workload_.sinks));
  FOVEAL_RETURN_IF_ERROR(fields_.get("deterministic", workload_.deterministic));
  FOVEAL_RETURN_IF_ERROR(fields_.get("batch_invariant", workload_.batch_invariant));
  FOVEAL_RETURN_IF_ERROR(
      fields_.get("softcap", NumberRange{0, kMaxWorkloadSoftcap}, workload_.softcap));
  std::int64_t seed = 0;
  FOVEAL_RETURN_IF_ERROR(fields_.get("seed", IntRange{0, kMaxWorkloadSeed}, seed));
  workload_.seed = static_cast<std::uint64_t>(seed);

  std::vector<std::int64_t> window{-1, -1};
  FOVEAL_RETURN_IF_ERROR(fields_.get("window", IntRange{-1, kMaxWorkloadDimension}, window));
  if (window.size() != 2) {
    return error(fmt::format("window {}: must be [left, right]", list_text(window)));
  }
  workload_.window_size_left = window[0];
  workload_.window_size_right = window[1];
  return Status::ok();
}

Status WorkloadReader::read_layout() {
  switch (workload_.layout) {
    case WorkloadLayout::kThd: return read_packed_documents();
    case WorkloadLayout::kPackedQkv: return read_packed_qkv();
    case WorkloadLayout::kBshd:
    case WorkloadLayout::kBhsd: break;
    case WorkloadLayout::kPaged:
      FOVEAL_RETURN_IF_ERROR(fields_.require({"page_size"}));
      FOVEAL_RETURN_IF_ERROR(
          fields_.get("page_size", IntRange{1, kMaxWorkloadPageSize}, workload_.page_size));
      if (workload_.pass != WorkloadPass::kForward) {
        return fields_.refuse("pass", "must be forward with layout paged");
      }
      return read_sequences();
  }
  FOVEAL_RETURN_IF_ERROR(refuse_with_layout({"page_size"}));
  return read_sequences();
}

Status WorkloadReader::read_packed_documents() {
  FOVEAL_RETURN_IF_ERROR(
      refuse_with_layout({"batch", "seqlen_q", "seqlen_k", "seqused_k", "page_size"}));
  FOVEAL_RETURN_IF_ERROR(fields_.require({"doc_lens"}));
  FOVEAL_RETURN_IF_ERROR(read_lengths("doc_lens", workload_.doc_lens));
  const std::vector<std::int64_t>& lengths = workload_.doc_lens;
  const std::int64_t longest =
      lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0) return error("doc_lens must hold a document with at least one token");
  workload_.batch = static_cast<std::int64_t>(lengths.size());
  workload_.seqlen_q = workload_.seqlen_k = longest;
  return Status::ok();
}

Status WorkloadReader::read_packed_qkv() {
  FOVEAL_RETURN_IF_ERROR(refuse_with_layout({"doc_lens", "seqused_k", "page_size"}));
  FOVEAL_RETURN_IF_ERROR(fields_.require({"batch", "seqlen_q"}));
  FOVEAL_RETURN_IF_ERROR(fields_.get("batch", kDimension, workload_.batch));
  FOVEAL_RETURN_IF_ERROR(fields_.get("seqlen_q", kDimension, workload_.seqlen_q));
  workload_.seqlen_k = workload_.seqlen_q;
  FOVEAL_RETURN_IF_ERROR(fields_.get("seqlen_k", kDimension, workload_.seqlen_k));
  if (workload_.seqlen_k == workload_.seqlen_q) return Status::ok();
  return fields_.refuse(
      "seqlen_k", fmt::format("must be seqlen_q {} with layout packed_qkv", workload_.seqlen_q));
}

/// bshd, bhsd and paged: `seqused_k`, where given, can stand for batch and seqlen_k.
Status WorkloadReader::read_sequences() {
  FOVEAL_RETURN_IF_ERROR(refuse_with_layout({"doc_lens"}));
  FOVEAL_RETURN_IF_ERROR(fields_.require({"seqlen_q"}));
  FOVEAL_RETURN_IF_ERROR(fields_.get("seqlen_q", kDimension, workload_.seqlen_q));
  std::vector<std::int64_t>& used = workload_.seqused_k;
  if (fields_.has("seqused_k")) {
    FOVEAL_RETURN_IF_ERROR(read_lengths("seqused_k", used));
    if (used.empty()) return error("seqused_k must hold a length for each sequence");
    workload_.batch = static_cast<std::int64_t>(used.size());
    workload_.seqlen_k = std::max<std::int64_t>(1, *std::max_element(used.begin(), used.end()));
  } else {
    FOVEAL_RETURN_IF_ERROR(fields_.require({"batch", "seqlen_k"}));
  }
  FOVEAL_RETURN_IF_ERROR(fields_.get("batch", kDimension, workload_.batch));
  FOVEAL_RETURN_IF_ERROR(fields_.get("seqlen_k", kDimension, workload_.seqlen_k));
  return check_seqused_k();
}

Status WorkloadReader::check_seqused_k() const {
  const std::vector<std::int64_t>& used = workload_.seqused_k;
  if (used.empty()) return Status::ok();
  if (static_cast<std::int64_t>(used.size()) != workload_.batch) {
    return error(
        fmt::format("seqused_k has {} lengths, batch is {}", used.size(), workload_.batch));
  }
  for (std::size_t b = 0; b < used.size(); ++b) {
    if (used[b] <= workload_.seqlen_k) continue;
    return error(fmt::format("seqused_k[{}] {}: must be at most seqlen_k {}", b, used[b],
                             workload_.seqlen_k));
  }
  return Status::ok();
}

/// Bytes of every tensor fit in 63 bits in the widest type, and page numbers in 31.
Status WorkloadReader::check_sizes() const {
  const Workload& w = workload_;
  std::int64_t pages = 0;
  if (w.layout == WorkloadLayout::kPaged) {
    pages = w.batch * ((w.seqlen_k + w.page_size - 1) / w.page_size);
    if (pages > kMaxWorkloadDimension) {
      return error(fmt::format("batch {} and seqlen_k {} take {} pages of {}: at most {}", w.batch,
                               w.seqlen_k, pages, w.page_size, kMaxWorkloadDimension));
    }
  }
  // Both lengths stay below 2^63: each factor is below 2^31, a document's total too.
  const std::int64_t rows_k = pages > 0                          ? pages * w.page_size
                              : w.layout == WorkloadLayout::kThd ? w.total_q()
                                                                 : w.batch * w.seqlen_k;
  const std::int64_t rows = std::max(w.total_q(), rows_k);
  const std::int64_t heads = w.nheads_q + 2 * w.nheads_k;
  std::int64_t bytes = w.headdim * dtype_bytes(DType::kFloat32);
  if (__builtin_mul_overflow(bytes, heads, &bytes) || __builtin_mul_overflow(bytes, rows, &bytes)) {
    return error(fmt::format("{} tokens of {} + 2 * {} heads of {}: more than 2^63 - 1 bytes", rows,
                             w.nheads_q, w.nheads_k, w.headdim));
  }
  return Status::ok();
}

/// An array of lengths, or an object that says where lengths stand.
Status WorkloadReader::read_lengths(std::string_view key,
                                    std::vector<std::int64_t>& lengths) const {
  if (!fields_.find(key)->is_object()) {
    FOVEAL_RETURN_IF_ERROR(fields_.get(key, kLength, lengths));
    return check_total_length(lengths, fmt::format("{}: {}", fields_.where(), key));
  }
  Result<std::vector<std::int64_t>> referenced = referenced_lengths(key);
  if (!referenced) return referenced.status();
  lengths = *std::move(referenced);
  return Status::ok();
}

Result<std::vector<std::int64_t>> WorkloadReader::referenced_lengths(std::string_view key) const {
  const Result<JsonFields> reference = fields_.object(key);
  if (!reference) return reference.status();
  std::string from;
  std::string group;
  std::int64_t pack = 0;
  std::int64_t min_len = 0;
  FOVEAL_RETURN_IF_ERROR(reference->allow({"from", "group", "pack", "min_len"}));
  FOVEAL_RETURN_IF_ERROR(reference->require({"from", "group", "pack"}));
  FOVEAL_RETURN_IF_ERROR(reference->get("from", from));
  FOVEAL_RETURN_IF_ERROR(reference->get("group", group));
  FOVEAL_RETURN_IF_ERROR(reference->get("pack", kLength, pack));
  FOVEAL_RETURN_IF_ERROR(reference->get("min_len", kLength, min_len));
  const bool has_control =
      std::any_of(from.begin(), from.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
  if (from.empty() || from.front() == '/' || has_control) {
    return reference->refuse("from", "must be a path relative to the manifest");
  }
  if (base_directory_.empty()) {
    return reference->refuse("from", "a manifest without a directory can't refer to files");
  }

  const std::string path = base_directory_ + "/" + from;
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file) {
    return Status(file.status().code(),
                  fmt::format("{}: {}", reference->where(), file.status().message()));
  }
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                              file->bytes().size());
  Result<std::vector<std::int64_t>> lengths = parse_doc_lens(text, path, group, pack);
  if (!lengths) {
    return Status(lengths.status().code(),
                  fmt::format("{}: {}", reference->where(), lengths.status().message()));
  }
  std::erase_if(*lengths, [&](std::int64_t length) { return length < min_len; });
  return lengths;
}

Status WorkloadReader::refuse_with_layout(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    if (!fields_.has(key)) continue;
    return error(fmt::format("{} does not go with layout {}", key, layout_name(workload_.layout)));
  }
  return Status::ok();
}

}  // namespace

std::string_view role_name(WorkloadRole role) { return word_of(kRoles, role); }
std::string_view workload_pass_name(WorkloadPass pass) { return word_of(kPasses, pass); }
std::string_view layout_name(WorkloadLayout layout) { return word_of(kLayouts, layout); }

Result<Workload> parse_workload(const json& entry, const std::string& source,
                                const std::string& where, const std::string& base_directory) {
  Result<JsonFields> fields = JsonFields::of(entry, where);
  if (!fields) return fields.status();
  return WorkloadReader(*std::move(fields), source, base_directory).read();
}

}  // namespace foveal::tools
