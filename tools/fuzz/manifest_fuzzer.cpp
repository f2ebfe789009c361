// Any text must be either refused with one line of text or read as a manifest whose workloads keep
// what manifest.hpp promises. The same text is tried as a file of document lengths.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "tools/doc_lens.hpp"
#include "tools/manifest.hpp"

namespace {

using foveal::Result;
using foveal::tools::Manifest;
using foveal::tools::Workload;
using foveal::tools::WorkloadLayout;

void require(bool condition) {
  if (!condition) __builtin_trap();
}

bool is_one_line(const std::string& message) {
  return message.starts_with("fuzz.json") && message.find('\n') == std::string::npos;
}

void check_workload(const Workload& w) {
  require(!w.id.empty() && w.batch >= 1 && w.seqlen_q >= 1 && w.seqlen_k >= 1);
  require(w.nheads_k >= 1 && w.nheads_q % w.nheads_k == 0);
  require(w.headdim >= 1 && w.headdim <= 512);
  require(w.window_size_left >= -1 && w.window_size_right >= -1 && w.softcap >= 0);
  require((w.layout == WorkloadLayout::kThd) == !w.doc_lens.empty());
  require((w.layout == WorkloadLayout::kPaged) == (w.page_size > 0));
  // A batch may be 2^31 - 1 sequences of one length: only lists are walked.
  const auto listed = static_cast<std::int64_t>(std::max(w.doc_lens.size(), w.seqused_k.size()));
  require(listed == 0 || listed == w.batch);
  for (std::int64_t b = 0; b < listed; ++b) {
    require(w.queries_of(b) >= 0 && w.queries_of(b) <= w.seqlen_q);
    require(w.keys_of(b) >= 0 && w.keys_of(b) <= w.seqlen_k);
  }
  require(w.total_q() >= 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Manifest> manifest = foveal::tools::parse_manifest(text, "fuzz.json", "");
  if (manifest) {
    std::set<std::string> ids;
    for (const Workload& workload : manifest->workloads) {
      check_workload(workload);
      require(ids.insert(workload.id).second);
    }
    require(!ids.empty());
  } else {
    require(is_one_line(manifest.status().message()));
  }

  const auto lengths = foveal::tools::parse_doc_lens(text, "fuzz.json", "g", 0);
  require(lengths.is_ok() || is_one_line(lengths.status().message()));
  return 0;
}
