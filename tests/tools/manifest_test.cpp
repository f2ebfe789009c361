#include "tools/manifest.hpp"
#include "support/source_directory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "temporary_directory.hpp"
#include "tools/doc_lens.hpp"

namespace foveal::tools {
namespace {

using nlohmann::json;

json workload(const json& changes = json::object()) {
  json entry = {{"id", "a"},       {"role", "target"}, {"pass", "forward"}, {"layout", "bshd"},
                {"dtype", "fp16"}, {"batch", 2},       {"nheads_q", 4},     {"nheads_k", 2},
                {"seqlen_q", 3},   {"seqlen_k", 5},    {"headdim", 64}};
  entry.merge_patch(changes);  // null removes a key
  return entry;
}

json thd(const json& doc_lens) {
  return {{"layout", "thd"},
          {"batch", nullptr},
          {"seqlen_q", nullptr},
          {"seqlen_k", nullptr},
          {"doc_lens", doc_lens}};
}

std::string manifest_of(const std::vector<json>& workloads, const json& more = json::object()) {
  json manifest = {{"name", "m"}, {"workloads", workloads}};
  manifest.update(more);
  return manifest.dump();
}

Workload parsed(const json& changes) {
  const auto manifest = parse_manifest(manifest_of({workload(changes)}), "m.json", "");
  EXPECT_TRUE(manifest) << manifest.status().message();
  return manifest ? manifest->workloads[0] : Workload{};
}

std::string message_of(std::string_view text) {
  const Result<Manifest> manifest = parse_manifest(text, "m.json", "");
  EXPECT_EQ(manifest.status().code(), StatusCode::kInvalidArgument) << text;
  return manifest.status().message();
}

std::string message_of_workload(const json& changes) {
  return message_of(manifest_of({workload(changes)}));
}

TEST(Manifest, ReadsDefaults) {
  const auto manifest = parse_manifest(manifest_of({workload()}), "m.json", "");
  ASSERT_TRUE(manifest) << manifest.status().message();
  EXPECT_EQ(manifest->name, "m");
  EXPECT_EQ(manifest->description, "");
  EXPECT_EQ(manifest->accuracy.of(DType::kFloat16).rel_frobenius, 0.005);
  EXPECT_EQ(manifest->accuracy.of(DType::kFloat16).max_abs, 0.05);
  EXPECT_EQ(manifest->accuracy.of(DType::kBFloat16).rel_frobenius, 0.01);
  EXPECT_EQ(manifest->accuracy.of(DType::kBFloat16).max_abs, 0.05);
  EXPECT_EQ(manifest->accuracy.of(DType::kFloat32).rel_frobenius, 1e-5);
  EXPECT_EQ(manifest->gates.improve, 0.05);
  EXPECT_EQ(manifest->gates.protected_latency, 0.05);
  EXPECT_EQ(manifest->gates.protected_memory, 0.02);

  const Workload& w = manifest->workloads.at(0);
  EXPECT_EQ(w.id, "a");
  EXPECT_FALSE(w.causal || w.sinks || w.deterministic || w.batch_invariant);
  EXPECT_EQ(w.window_size_left, -1);
  EXPECT_EQ(w.window_size_right, -1);
  EXPECT_EQ(w.softcap, 0);
  EXPECT_EQ(w.seed, 0u);
  EXPECT_EQ(w.queries_of(1), 3);
  EXPECT_EQ(w.keys_of(1), 5);
  EXPECT_EQ(w.total_q(), 6);
}

TEST(Manifest, ReadsEveryOption) {
  const json options = {{"causal", true},          {"window", {4, -1}},
                        {"softcap", 30.5},         {"sinks", true},
                        {"deterministic", true},   {"batch_invariant", true},
                        {"seed", 9007199254740991}};
  const json top = {{"description", "d"},
                    {"accuracy", {{"bf16", {{"max_abs", 1}}}, {"fp32", {{"rel_frobenius", 0.5}}}}},
                    {"gates", {{"improve", 0.5}, {"protected_memory", 0}}}};
  const auto manifest = parse_manifest(manifest_of({workload(options)}, top), "m.json", "");
  ASSERT_TRUE(manifest) << manifest.status().message();
  EXPECT_EQ(manifest->description, "d");
  EXPECT_EQ(manifest->accuracy.bf16.max_abs, 1);
  EXPECT_EQ(manifest->accuracy.bf16.rel_frobenius, 0.01);
  EXPECT_EQ(manifest->accuracy.fp32.rel_frobenius, 0.5);
  EXPECT_EQ(manifest->gates.improve, 0.5);
  EXPECT_EQ(manifest->gates.protected_latency, 0.05);
  EXPECT_EQ(manifest->gates.protected_memory, 0);

  const Workload& w = manifest->workloads.at(0);
  EXPECT_TRUE(w.causal && w.sinks && w.deterministic && w.batch_invariant);
  EXPECT_EQ(w.window_size_left, 4);
  EXPECT_EQ(w.window_size_right, -1);
  EXPECT_EQ(w.softcap, 30.5);
  EXPECT_EQ(w.seed, 9007199254740991u);
}

TEST(Manifest, ReadsEveryWord) {
  for (const auto role : {WorkloadRole::kTarget, WorkloadRole::kProtected, WorkloadRole::kGuard,
                          WorkloadRole::kInfo}) {
    EXPECT_EQ(parsed({{"role", role_name(role)}}).role, role);
  }
  for (const auto pass : {WorkloadPass::kForward, WorkloadPass::kBackward, WorkloadPass::kTrain}) {
    EXPECT_EQ(parsed({{"pass", workload_pass_name(pass)}}).pass, pass);
  }
  for (const auto layout : {WorkloadLayout::kBshd, WorkloadLayout::kBhsd}) {
    EXPECT_EQ(parsed({{"layout", layout_name(layout)}}).layout, layout);
  }
  for (const auto dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    EXPECT_EQ(parsed({{"dtype", dtype_name(dtype)}}).dtype, dtype);
  }
  EXPECT_EQ(layout_name(WorkloadLayout::kThd), "thd");
  EXPECT_EQ(layout_name(WorkloadLayout::kPackedQkv), "packed_qkv");
  EXPECT_EQ(layout_name(WorkloadLayout::kPaged), "paged");
}

TEST(Manifest, PackedDocumentsGiveTheBatch) {
  const Workload w = parsed(thd({0, 7, 3}));
  EXPECT_EQ(w.layout, WorkloadLayout::kThd);
  EXPECT_EQ(w.batch, 3);
  EXPECT_EQ(w.seqlen_q, 7);
  EXPECT_EQ(w.seqlen_k, 7);
  EXPECT_EQ(w.total_q(), 10);
  EXPECT_EQ(w.queries_of(0), 0);
  EXPECT_EQ(w.keys_of(2), 3);
}

TEST(Manifest, PackedQkvHasOneLength) {
  const Workload w = parsed({{"layout", "packed_qkv"}, {"seqlen_k", nullptr}});
  EXPECT_EQ(w.seqlen_k, 3);
  EXPECT_EQ(parsed({{"layout", "packed_qkv"}, {"seqlen_k", 3}}).seqlen_k, 3);
}

TEST(Manifest, UsedLengthsStandForBatchAndCapacity) {
  const json used = {{"seqused_k", {0, 17, 3}}, {"batch", nullptr}, {"seqlen_k", nullptr}};
  const Workload w = parsed(used);
  EXPECT_EQ(w.batch, 3);
  EXPECT_EQ(w.seqlen_k, 17);
  EXPECT_EQ(w.keys_of(0), 0);
  EXPECT_EQ(w.keys_of(2), 3);
  EXPECT_EQ(w.queries_of(2), 3);

  json paged = used;
  paged.update({{"layout", "paged"}, {"page_size", 16}, {"seqlen_k", 64}});
  EXPECT_EQ(parsed(paged).seqlen_k, 64);
  EXPECT_EQ(parsed(paged).page_size, 16);
  EXPECT_EQ(parsed({{"seqused_k", {0, 0}}, {"seqlen_k", nullptr}}).seqlen_k, 1);
}

struct ManifestCase {
  std::string text;
  std::string message;  // behind "m.json"
};

TEST(Manifest, RefusesTopLevelMistakes) {
  const std::vector<ManifestCase> cases{
      {"", ": not JSON: the text ends before its value is complete"},
      {"[]", " must be an object, got an array"},
      {R"({"name":"m","name":"n"})", ": key 'name' stands twice in one object"},
      {R"({"workloads":[]})", ": name is missing"},
      {R"({"name":"m"})", ": workloads is missing"},
      {R"({"name":"","workloads":[]})", ": name '': must not be empty"},
      {R"({"name":1,"workloads":[]})", ": name 1: must be a string"},
      {R"({"name":"m","workloads":[]})",
       ": workloads an array: must be an array of at least one workload"},
      {R"({"name":"m","workloads":{}})",
       ": workloads an object: must be an array of at least one workload"},
      {R"({"name":"m","workloads":[3]})", ": workloads[0] must be an object, got 3"},
      {manifest_of({workload()}, {{"gate", 1}}),
       ": unknown key 'gate': allowed are name, description, accuracy, gates, workloads"},
      {manifest_of({workload()}, {{"description", 1}}), ": description 1: must be a string"},
      {manifest_of({workload()}, {{"accuracy", 1}}), ": accuracy must be an object, got 1"},
      {manifest_of({workload()}, {{"accuracy", {{"fp8", 1}}}}),
       ": accuracy: unknown key 'fp8': allowed are fp16, bf16, fp32"},
      {manifest_of({workload()}, {{"accuracy", {{"fp16", {{"rel", 1}}}}}}),
       ": accuracy: fp16: unknown key 'rel': allowed are rel_frobenius, max_abs"},
      {manifest_of({workload()}, {{"accuracy", {{"fp16", {{"max_abs", -1}}}}}}),
       ": accuracy: fp16: max_abs -1: must be a number from 0 to 1000000"},
      {manifest_of({workload()}, {{"gates", {{"speed", 1}}}}),
       ": gates: unknown key 'speed': allowed are improve, protected_latency, protected_memory"},
      {manifest_of({workload()}, {{"gates", {{"improve", 1.5}}}}),
       ": gates: improve 1.5: must be a number from 0 to 1"},
      {manifest_of({workload()}, {{"gates", {{"improve", "5%"}}}}),
       ": gates: improve '5%': must be a number from 0 to 1"},
      {manifest_of({workload(), workload()}), ": workloads[1]: id 'a' stands twice"},
  };
  for (const ManifestCase& c : cases) EXPECT_EQ(message_of(c.text), "m.json" + c.message) << c.text;
}

struct WorkloadCase {
  json changes;
  std::string message;  // behind "m.json: workload 'a': "
};

void expect_messages(const std::vector<WorkloadCase>& cases) {
  for (const WorkloadCase& c : cases) {
    EXPECT_EQ(message_of_workload(c.changes), "m.json: workload 'a': " + c.message) << c.changes;
  }
}

TEST(Manifest, RefusesWorkloadsWithoutAName) {
  const std::string id_rule = ": must be 1 to 100 of the characters A-Z a-z 0-9 - _ . /";
  EXPECT_EQ(message_of_workload({{"id", nullptr}}), "m.json: workloads[0]: id is missing");
  EXPECT_EQ(message_of_workload({{"id", ""}}), "m.json: workloads[0]: id ''" + id_rule);
  EXPECT_EQ(message_of_workload({{"id", "a b"}}), "m.json: workloads[0]: id 'a b'" + id_rule);
  EXPECT_EQ(message_of_workload({{"id", std::string(101, 'a')}}),
            "m.json: workloads[0]: id '" + std::string(80, 'a') + "...'" + id_rule);
  EXPECT_EQ(message_of_workload({{"head_dim", 64}}),
            "m.json: workloads[0]: unknown key 'head_dim': allowed are id, role, pass, layout, "
            "dtype, batch, nheads_q, nheads_k, seqlen_q, seqlen_k, headdim, causal, window, "
            "softcap, sinks, deterministic, batch_invariant, doc_lens, seqused_k, page_size, seed");
  for (const char* key : {"role", "pass", "layout", "dtype", "nheads_q", "nheads_k", "headdim"}) {
    EXPECT_EQ(message_of_workload({{key, nullptr}}),
              "m.json: workloads[0]: " + std::string(key) + " is missing");
  }
}

TEST(Manifest, RefusesWrongValues) {
  const std::string dimension = ": must be an integer from 1 to 2147483647";
  expect_messages({
      {{{"role", "winner"}}, "role 'winner': must be one of target, protected, guard, info"},
      {{{"role", 1}}, "role 1: must be a string"},
      {{{"pass", "fwd"}}, "pass 'fwd': must be one of forward, backward, train"},
      {{{"layout", "sbhd"}}, "layout 'sbhd': must be one of bshd, bhsd, thd, packed_qkv, paged"},
      {{{"dtype", "fp8"}}, "dtype 'fp8': must be one of fp16, bf16, fp32"},
      {{{"batch", 0}}, "batch 0" + dimension},
      {{{"batch", 1.0}}, "batch 1.0" + dimension},
      {{{"seqlen_q", -1}}, "seqlen_q -1" + dimension},
      {{{"seqlen_k", 18446744073709551615u}}, "seqlen_k 18446744073709551615" + dimension},
      {{{"nheads_q", 2147483648}}, "nheads_q 2147483648" + dimension},
      {{{"nheads_k", "2"}}, "nheads_k '2'" + dimension},
      {{{"nheads_q", 3}}, "nheads_q 3: must be a multiple of nheads_k 2"},
      {{{"headdim", 0}}, "headdim 0: must be an integer from 1 to 512"},
      {{{"headdim", 513}}, "headdim 513: must be an integer from 1 to 512"},
      {{{"causal", 1}}, "causal 1: must be true or false"},
      {{{"window", 4}}, "window 4: must be an array of integers"},
      {{{"window", {4}}}, "window [4]: must be [left, right]"},
      {{{"window", {4, -2}}}, "window[1] -2: must be an integer from -1 to 2147483647"},
      {{{"softcap", -0.5}}, "softcap -0.5: must be a number from 0 to 1000000"},
      {{{"sinks", json::array({1})}}, "sinks an array: must be true or false"},
      {{{"deterministic", "yes"}}, "deterministic 'yes': must be true or false"},
      {{{"batch_invariant", 0}}, "batch_invariant 0: must be true or false"},
      {{{"seed", -1}}, "seed -1: must be an integer from 0 to 9007199254740991"},
      {{{"seed", 9007199254740992}},
       "seed 9007199254740992: must be an integer from 0 to 9007199254740991"},
  });
}

TEST(Manifest, RefusesLengthsThatDoNotGoWithTheLayout) {
  json thd_with_batch = thd({1});
  thd_with_batch["batch"] = 1;
  const json paged = {{"layout", "paged"}, {"page_size", 16}};
  const auto paged_with = [&](const json& changes) {
    json all = paged;
    all.update(changes);
    return all;
  };
  expect_messages({
      {{{"batch", nullptr}}, "batch is missing"},
      {{{"seqlen_q", nullptr}}, "seqlen_q is missing"},
      {{{"seqlen_k", nullptr}}, "seqlen_k is missing"},
      {{{"doc_lens", {1}}}, "doc_lens does not go with layout bshd"},
      {{{"page_size", 16}}, "page_size does not go with layout bshd"},
      {thd_with_batch, "batch does not go with layout thd"},
      {thd(nullptr), "doc_lens is missing"},
      {thd(3), "doc_lens 3: must be an array of integers"},
      {thd({1, -1}), "doc_lens[1] -1: must be an integer from 0 to 2147483647"},
      {thd({2147483647, 1}), "doc_lens: the lengths add up to more than 2147483647"},
      {thd(json::array()), "doc_lens must hold a document with at least one token"},
      {thd({0, 0}), "doc_lens must hold a document with at least one token"},
      {{{"layout", "packed_qkv"}}, "seqlen_k 5: must be seqlen_q 3 with layout packed_qkv"},
      {{{"layout", "packed_qkv"}, {"seqused_k", {1}}},
       "seqused_k does not go with layout packed_qkv"},
      {{{"layout", "packed_qkv"}, {"batch", nullptr}}, "batch is missing"},
      {{{"seqused_k", json::array()}}, "seqused_k must hold a length for each sequence"},
      {{{"seqused_k", {1, 2, 3}}}, "seqused_k has 3 lengths, batch is 2"},
      {{{"seqused_k", {5, 6}}}, "seqused_k[1] 6: must be at most seqlen_k 5"},
      {{{"layout", "paged"}}, "page_size is missing"},
      {paged_with({{"page_size", 0}}), "page_size 0: must be an integer from 1 to 65536"},
      {paged_with({{"pass", "train"}}), "pass 'train': must be forward with layout paged"},
      {paged_with({{"doc_lens", {1}}}), "doc_lens does not go with layout paged"},
  });
}

TEST(Manifest, RefusesSizesThatOverflow) {
  expect_messages({
      {{{"batch", 2147483647}, {"seqlen_k", 2147483647}},
       "4611686014132420609 tokens of 4 + 2 * 2 heads of 64: more than 2^63 - 1 bytes"},
      {{{"batch", 1}, {"seqlen_q", 2147483647}, {"nheads_q", 2147483647}, {"nheads_k", 1}},
       "2147483647 tokens of 2147483647 + 2 * 1 heads of 64: more than 2^63 - 1 bytes"},
      {{{"layout", "paged"}, {"page_size", 1}, {"batch", 2147483647}},
       "batch 2147483647 and seqlen_k 5 take 10737418235 pages of 1: at most 2147483647"},
  });
}

json reference(const json& changes = json::object()) {
  json value = {{"from", "lengths.json"}, {"group", "g"}, {"pack", 1}};
  value.merge_patch(changes);
  return value;
}

constexpr std::string_view kLengthsFile = R"({"note": "n", "groups": [
  {"name": "f", "packs": []},
  {"name": "g", "packs": [{"doc_lens": [1]}, {"doc_lens": [4, 0, 1, 9], "first_doc_offset": 3}]}]})";

TEST(ManifestReferences, ReadLengthsBesideTheManifest) {
  const TemporaryDirectory directory;
  directory.write("lengths.json", kLengthsFile);
  json ragged = {{"seqused_k", reference({{"min_len", 1}})},
                 {"batch", nullptr},
                 {"seqlen_k", nullptr},
                 {"id", "b"}};
  const std::string path =
      directory.write("m.json", manifest_of({workload(thd(reference())), workload(ragged)}));
  const Result<Manifest> manifest = load_manifest(path);
  ASSERT_TRUE(manifest) << manifest.status().message();
  EXPECT_EQ(manifest->workloads[0].doc_lens, (std::vector<std::int64_t>{4, 0, 1, 9}));
  EXPECT_EQ(manifest->workloads[1].seqused_k, (std::vector<std::int64_t>{4, 1, 9}));
  EXPECT_EQ(manifest->workloads[1].batch, 3);
}

TEST(ManifestReferences, SayWhatIsWrong) {
  const TemporaryDirectory directory;
  const std::string lengths = directory.write("lengths.json", kLengthsFile);
  const auto message = [&](const json& value) {
    const auto manifest =
        parse_manifest(manifest_of({workload(thd(value))}), "m.json", directory.path());
    return manifest.status().message();
  };
  const std::string where = "m.json: workload 'a': doc_lens: ";
  EXPECT_EQ(message(reference({{"file", "x"}})),
            where + "unknown key 'file': allowed are from, group, pack, min_len");
  EXPECT_EQ(message(reference({{"group", nullptr}})), where + "group is missing");
  EXPECT_EQ(message(reference({{"pack", -1}})),
            where + "pack -1: must be an integer from 0 to 2147483647");
  for (const char* path : {"", "/etc/passwd"}) {
    EXPECT_EQ(message(reference({{"from", path}})),
              where + "from '" + path + "': must be a path relative to the manifest");
  }
  EXPECT_EQ(message(reference({{"from", "a\nb"}})),
            where + "from 'a\\x0ab': must be a path relative to the manifest");
  EXPECT_EQ(message(reference({{"from", "absent"}})),
            where + directory.file("absent") + ": can't be opened: No such file or directory");
  EXPECT_EQ(message(reference({{"group", "h"}})),
            where + lengths + ": no group 'h': it has 'f', 'g'");
  EXPECT_EQ(message(reference({{"pack", 2}})),
            where + lengths + ": group 'g' has no pack 2: it has 2");
  EXPECT_EQ(message(reference({{"min_len", 10}})),
            "m.json: workload 'a': doc_lens must hold a document with at least one token");
  EXPECT_EQ(message_of_workload(thd(reference())),
            where + "from 'lengths.json': a manifest without a directory can't refer to files");
}

TEST(DocLens, SaysWhatIsWrong) {
  const auto message = [](std::string_view text) {
    const auto lengths = parse_doc_lens(text, "f", "g", 0);
    EXPECT_EQ(lengths.status().code(), StatusCode::kInvalidArgument) << text;
    return lengths.status().message();
  };
  EXPECT_EQ(message("{"), "f: not JSON: the text ends before its value is complete");
  EXPECT_EQ(message("[]"), "f must be an object, got an array");
  EXPECT_EQ(message("{}"), "f: groups is missing");
  EXPECT_EQ(message(R"({"groups":1})"), "f: groups 1: must be an array");
  EXPECT_EQ(message(R"({"groups":[]})"), "f: no group 'g': it has none");
  EXPECT_EQ(message(R"({"groups":[1]})"), "f: groups[0] must be an object, got 1");
  EXPECT_EQ(message(R"({"groups":[{}]})"), "f: groups[0]: name is missing");
  EXPECT_EQ(message(R"({"groups":[{"name":1}]})"), "f: groups[0]: name 1: must be a string");
  EXPECT_EQ(message(R"({"groups":[{"name":"g"}]})"), "f: groups[0]: packs is missing");
  EXPECT_EQ(message(R"({"groups":[{"name":"g","packs":[]}]})"),
            "f: group 'g' has no pack 0: it has 0");
  EXPECT_EQ(message(R"({"groups":[{"name":"g","packs":[1]}]})"),
            "f: group 'g' pack 0 must be an object, got 1");
  EXPECT_EQ(message(R"({"groups":[{"name":"g","packs":[{}]}]})"),
            "f: group 'g' pack 0: doc_lens is missing");
  EXPECT_EQ(message(R"({"groups":[{"name":"g","packs":[{"doc_lens":[-1]}]}]})"),
            "f: group 'g' pack 0: doc_lens[0] -1: must be an integer from 0 to 2147483647");
  EXPECT_EQ(message(R"({"groups":[{"name":"g","packs":[{"doc_lens":[2147483647,1]}]}]})"),
            "f: group 'g' pack 0: the lengths add up to more than 2147483647");
}

TEST(LoadManifest, NamesTheFile) {
  const TemporaryDirectory directory;
  const std::string missing = directory.file("absent.json");
  EXPECT_EQ(load_manifest(missing).status().message(),
            missing + ": can't be opened: No such file or directory");
  const std::string empty = directory.write("m.json", "{}");
  EXPECT_EQ(load_manifest(empty).status().message(), empty + ": name is missing");
}

Manifest shipped(const std::string& name) {
  const std::string path = test::source_directory() + "/bench/manifests/" + name + ".json";
  const Result<Manifest> manifest = load_manifest(path);
  EXPECT_TRUE(manifest) << manifest.status().message();
  return manifest ? *manifest : Manifest{};
}

TEST(ShippedManifests, AreNamedAsTheirFiles) {
  for (const char* name : {"foundation", "decode", "prefill", "train", "cpu", "cpu_peers"}) {
    EXPECT_EQ(shipped(name).name, name);
    EXPECT_FALSE(shipped(name).description.empty()) << name;
  }
}

TEST(ShippedManifests, FoundationHoldsTheGateOfEveryChange) {
  const Manifest manifest = shipped("foundation");
  EXPECT_EQ(manifest.accuracy.fp16.rel_frobenius, 0.005);
  EXPECT_EQ(manifest.accuracy.fp16.max_abs, 0.05);
  EXPECT_EQ(manifest.gates.improve, 0.05);
  EXPECT_EQ(manifest.gates.protected_latency, 0.05);
  EXPECT_EQ(manifest.gates.protected_memory, 0.02);
  ASSERT_EQ(manifest.workloads.size(), 9u);
  const std::vector<std::int64_t> lengths{1024, 4096, 8192, 512, 1024, 2048, 4096};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const Workload& w = manifest.workloads[i];
    const bool decode = i < 3;
    const std::string name = decode ? "decode-b1-h16-kv" : "prefill-b1-h16-s";
    EXPECT_EQ(w.id, name + std::to_string(lengths[i]) + "-d128");
    EXPECT_EQ(w.role, decode ? WorkloadRole::kTarget : WorkloadRole::kProtected) << w.id;
    EXPECT_EQ(w.pass, WorkloadPass::kForward) << w.id;
    EXPECT_EQ(w.seqlen_q, decode ? 1 : lengths[i]) << w.id;
    EXPECT_EQ(w.seqlen_k, lengths[i]) << w.id;
    EXPECT_EQ(w.causal, !decode) << w.id;
  }
  for (const Workload& w : manifest.workloads) {
    EXPECT_EQ(w.dtype, DType::kFloat16) << w.id;
    EXPECT_EQ(w.nheads_q, 16) << w.id;
    EXPECT_EQ(w.nheads_k, 16) << w.id;
    EXPECT_EQ(w.headdim, 128) << w.id;
  }
  EXPECT_EQ(manifest.workloads[7].layout, WorkloadLayout::kPackedQkv);
  EXPECT_EQ(manifest.workloads[7].role, WorkloadRole::kGuard);
  const Workload& ragged = manifest.workloads[8];
  EXPECT_EQ(ragged.role, WorkloadRole::kGuard);
  EXPECT_EQ(ragged.total_q(), 4096);
  EXPECT_TRUE(std::ranges::count(ragged.doc_lens, 0) > 0);
}

}  // namespace
}  // namespace foveal::tools
