#include "tools/manifest.hpp"

#include <fmt/format.h>

#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "tools/json_fields.hpp"
#include "tools/manifest_workload.hpp"
#include "tools/mapped_file.hpp"
#include "tools/message_text.hpp"
#include "tools/strict_json.hpp"

namespace foveal::tools {
namespace {

using nlohmann::json;

constexpr NumberRange kFraction{0, 1};
constexpr NumberRange kTolerance{0, 1e6};

Status read_limits(const JsonFields& accuracy, std::string_view dtype, AccuracyLimits& limits) {
  const Result<JsonFields> fields = accuracy.object(dtype);
  if (!fields) return fields.status();
  FOVEAL_RETURN_IF_ERROR(fields->allow({"rel_frobenius", "max_abs"}));
  FOVEAL_RETURN_IF_ERROR(fields->get("rel_frobenius", kTolerance, limits.rel_frobenius));
  return fields->get("max_abs", kTolerance, limits.max_abs);
}

Status read_accuracy(const JsonFields& manifest, Accuracy& accuracy) {
  const Result<JsonFields> fields = manifest.object("accuracy");
  if (!fields) return fields.status();
  FOVEAL_RETURN_IF_ERROR(fields->allow({"fp16", "bf16", "fp32"}));
  FOVEAL_RETURN_IF_ERROR(read_limits(*fields, "fp16", accuracy.fp16));
  FOVEAL_RETURN_IF_ERROR(read_limits(*fields, "bf16", accuracy.bf16));
  return read_limits(*fields, "fp32", accuracy.fp32);
}

Status read_gates(const JsonFields& manifest, Gates& gates) {
  const Result<JsonFields> fields = manifest.object("gates");
  if (!fields) return fields.status();
  FOVEAL_RETURN_IF_ERROR(fields->allow({"improve", "protected_latency", "protected_memory"}));
  FOVEAL_RETURN_IF_ERROR(fields->get("improve", kFraction, gates.improve));
  FOVEAL_RETURN_IF_ERROR(fields->get("protected_latency", kFraction, gates.protected_latency));
  return fields->get("protected_memory", kFraction, gates.protected_memory);
}

Status read_workloads(const JsonFields& fields, const std::string& source,
                      const std::string& base_directory, std::vector<Workload>& workloads) {
  const json& entries = *fields.find("workloads");
  if (!entries.is_array() || entries.empty()) {
    return fields.refuse("workloads", "must be an array of at least one workload");
  }
  std::set<std::string> ids;
  for (const json& entry : entries) {
    const std::string where = fmt::format("{}: workloads[{}]", source, workloads.size());
    Result<Workload> workload = parse_workload(entry, source, where, base_directory);
    if (!workload) return workload.status();
    if (!ids.insert(workload->id).second) {
      return Status::invalid_argument(
          fmt::format("{}: id {} stands twice", where, in_quotes(workload->id)));
    }
    workloads.push_back(*std::move(workload));
  }
  return Status::ok();
}

}  // namespace

std::int64_t Workload::queries_of(std::int64_t b) const {
  return doc_lens.empty() ? seqlen_q : doc_lens[static_cast<std::size_t>(b)];
}

std::int64_t Workload::keys_of(std::int64_t b) const {
  if (!doc_lens.empty()) return doc_lens[static_cast<std::size_t>(b)];
  return seqused_k.empty() ? seqlen_k : seqused_k[static_cast<std::size_t>(b)];
}

std::int64_t Workload::total_q() const {
  if (doc_lens.empty()) return batch * seqlen_q;
  return std::accumulate(doc_lens.begin(), doc_lens.end(), std::int64_t{0});
}

const AccuracyLimits& Accuracy::of(DType dtype) const {
  switch (dtype) {
    case DType::kFloat16: return fp16;
    case DType::kBFloat16: return bf16;
    default: return fp32;
  }
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& source,
                                const std::string& base_directory) try {
  const Result<json> tree = parse_strict_json(text, source);
  if (!tree) return tree.status();
  const Result<JsonFields> fields = JsonFields::of(*tree, source);
  if (!fields) return fields.status();
  FOVEAL_RETURN_IF_ERROR(fields->allow({"name", "description", "accuracy", "gates", "workloads"}));
  FOVEAL_RETURN_IF_ERROR(fields->require({"name", "workloads"}));

  Manifest manifest;
  FOVEAL_RETURN_IF_ERROR(fields->get("name", manifest.name));
  if (manifest.name.empty()) return fields->refuse("name", "must not be empty");
  FOVEAL_RETURN_IF_ERROR(fields->get("description", manifest.description));
  FOVEAL_RETURN_IF_ERROR(read_accuracy(*fields, manifest.accuracy));
  FOVEAL_RETURN_IF_ERROR(read_gates(*fields, manifest.gates));
  FOVEAL_RETURN_IF_ERROR(read_workloads(*fields, source, base_directory, manifest.workloads));
  return manifest;
} catch (const std::bad_alloc&) {
  return Status::out_of_memory(source + ": not enough memory for the manifest");
}

Result<Manifest> load_manifest(const std::string& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file) return file.status();
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                              file->bytes().size());
  return parse_manifest(text, path, directory);
}

}  // namespace foveal::tools
