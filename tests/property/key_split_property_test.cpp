// Keys in two disjoint parts: the parts' results merge into the whole's, and with the whole's out
// and lse the parts' gradients are the whole's.
#include "property/property_case.hpp"

namespace foveal::test {
namespace {

/// Keys [begin, end) of a dense case: the same problem on views of k, v, bias and their gradients.
struct KeyRange {
  std::int64_t begin, end;
};

void take_keys(const BuiltCase& whole, KeyRange keys, AttentionProblem& problem,
               AttentionTensors& tensors) {
  problem = whole.bench.problem;
  tensors = whole.bench.tensors;
  const auto narrow = [&](std::string_view name, std::size_t axis) {
    if (!whole.bench.has(name)) return;
    const Operand& operand = whole.bench.at(name);
    TensorSpec& spec = problem.*(operand.info->spec);
    if (spec.shape[axis] == 1 && name == "bias") return;  // broadcast over the keys
    spec.shape[axis] = keys.end - keys.begin;
    const std::int64_t bytes = keys.begin * spec.strides[axis] * dtype_bytes(spec.dtype);
    if (operand.info->input != nullptr) {
      tensors.*(operand.info->input) =
          static_cast<const std::byte*>(tensors.*(operand.info->input)) + bytes;
    } else {
      tensors.*(operand.info->output) =
          static_cast<std::byte*>(tensors.*(operand.info->output)) + bytes;
    }
  };
  for (const std::string_view name : {"k", "v", "dk", "dv"}) narrow(name, 1);
  narrow("bias", 3);
}

/// A dense case whose keys don't know their place among all.
Case splittable_case(Pass pass) {
  return *any_case(pass, [](Case& draft) {
    make_dense(draft);
    without_mask(draft);
    draft.dropout = 0;
    draft.fp32_out = draft.fp32_grads = true;
    draft.lse = draft.dq = draft.dk = draft.dv = true;
    draft.dbias = draft.dsinks = false;
    if (draft.bias != BiasKind::kNone) draft.bias_shape = "bhqk";
  });
}

FOVEAL_PROPERTY(KeySplit, PartsMergeIntoTheWhole) {
  const Case c = splittable_case(Pass::kForward);
  const std::int64_t n_k = c.lens.front().k;
  const std::int64_t cut = *rc::gen::inRange<std::int64_t>(0, n_k + 1);  // a part may be empty
  BuiltCase whole(c);
  run_or_discard(whole);

  Workbench merged;
  merged.problem.pass = Pass::kMerge;
  const TensorSpec out = whole.bench.at("out").spec;
  const TensorSpec lse = whole.bench.at("lse").spec;
  const std::pair<const char*, const char*> names[] = {{"out_a", "lse_a"}, {"out_b", "lse_b"}};
  const KeyRange parts[] = {{0, cut}, {cut, n_k}};
  for (std::size_t part = 0; part < 2; ++part) {
    AttentionProblem problem;
    AttentionTensors tensors;
    take_keys(whole, parts[part], problem, tensors);
    if (part == 1) {  // a sink belongs to one part only
      problem.sinks = {};
      tensors.sinks = nullptr;
    }
    tensors.out = merged.add(names[part].first, out).data();
    tensors.lse = merged.add(names[part].second, lse).data();
    const Status status =
        run_problem(problem, tensors, {.kernel = c.kernel, .num_threads = c.num_threads});
    if (!status) RC_FAIL(status.message());
  }
  Operand& merged_out = merged.add("out", out);
  Operand& merged_lse = merged.add("lse", lse);
  for (const std::string& kernel : usable_kernels_of(Pass::kMerge)) {
    const Status status = merged.run({.kernel = kernel});
    if (!status) RC_FAIL(status.message());
    const SequenceComparison compare{whole, whole, Match::kRounded};
    const auto equal = [&](std::string_view name, const Operand& actual) {
      const std::vector<double> expected = whole.bench.at(name).values();
      const std::vector<double> values = actual.values();
      for (std::size_t i = 0; i < values.size(); ++i) {
        compare.element(name, expected[i], values[i], std::min(std::abs(expected[i]), 100.0));
      }
    };
    equal("out", merged_out);
    equal("lse", merged_lse);
  }
}

FOVEAL_PROPERTY(KeySplit, PartsOfABackwardAreTheWholes) {
  const Case c = splittable_case(Pass::kBackward);
  const std::int64_t n_k = c.lens.front().k;
  const std::int64_t cut = *rc::gen::inRange<std::int64_t>(0, n_k + 1);
  BuiltCase whole(c);
  BuiltCase split(c);
  run_or_discard(whole);
  std::vector<double> dq(static_cast<std::size_t>(whole.bench.at("dq").spec.numel()), 0.0);
  for (const KeyRange keys : {KeyRange{0, cut}, KeyRange{cut, n_k}}) {
    AttentionProblem problem;
    AttentionTensors tensors;
    take_keys(split, keys, problem, tensors);
    const Status status =
        run_problem(problem, tensors, {.kernel = c.kernel, .num_threads = c.num_threads});
    if (!status) RC_FAIL(status.message());
    const std::vector<double> part = split.bench.at("dq").values();
    for (std::size_t i = 0; i < dq.size(); ++i) dq[i] += part[i];
  }
  require(split.bench.check_memory());  // both parts together wrote all of dk and dv
  const SequenceComparison compare{whole, split, Match::kRounded};
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    compare.keys("dk", b, b);
    compare.keys("dv", b, b);
  }
  const std::vector<double> expected = whole.bench.at("dq").values();
  const double scale = compare.largest("dq");
  for (std::size_t i = 0; i < dq.size(); ++i) compare.element("dq", expected[i], dq[i], scale);
}

}  // namespace
}  // namespace foveal::test
