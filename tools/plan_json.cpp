#include "tools/plan_json.hpp"

namespace foveal::tools {
namespace {

const char* outcome_name(KernelVerdict::Outcome outcome) {
  switch (outcome) {
    case KernelVerdict::Outcome::kChosen: return "chosen";
    case KernelVerdict::Outcome::kSlower: return "slower";
    case KernelVerdict::Outcome::kUnsupported: return "unsupported";
  }
  return "unknown";
}

}  // namespace

OrderedJson to_json(const DeviceInfo& device) {
  OrderedJson json{
      {"type", device.type == DeviceType::kCuda ? "cuda" : "cpu"},
      {"index", device.index},
      {"name", device.name},
      {"present", device.present},
  };
  if (device.type == DeviceType::kCuda) {
    json["sm"] = device.sm;
    json["num_sms"] = device.num_sms;
    json["smem_per_block_bytes"] = device.smem_per_block_bytes;
  } else {
    json["num_threads"] = device.num_threads;
    json["isa"] = device.isa;
  }
  json["l2_bytes"] = device.l2_bytes;
  json["fp32_gflops"] = device.fp32_gflops;
  json["fp16_gflops"] = device.fp16_gflops;
  json["bf16_gflops"] = device.bf16_gflops;
  json["read_gbs"] = device.read_gbs;
  json["limits_source"] = device.limits_source;
  return json;
}

OrderedJson to_json(std::span<const KernelVerdict> verdicts) {
  OrderedJson list = OrderedJson::array();
  for (const KernelVerdict& verdict : verdicts) {
    list.push_back({
        {"name", verdict.name},
        {"outcome", outcome_name(verdict.outcome)},
        {"reason", verdict.reason},
        {"predicted_time_us", verdict.predicted_time_us},
        {"workspace_bytes", verdict.workspace_bytes},
    });
  }
  return list;
}

OrderedJson to_json(const AttentionWork& work) {
  return {
      {"visible_pairs", work.visible_pairs},
      {"flops", work.flops},
      {"read_bytes", work.read_bytes},
      {"written_bytes", work.written_bytes},
  };
}

OrderedJson to_json(const Explanation& explanation) {
  OrderedJson parts = OrderedJson::array();
  for (const WorkspacePart& part : explanation.workspace) {
    parts.push_back({{"name", part.name}, {"bytes", part.bytes}});
  }
  return {
      {"problem", explanation.problem},
      {"device", to_json(explanation.device)},
      {"kernel", explanation.kernel.empty() ? OrderedJson() : OrderedJson(explanation.kernel)},
      {"configuration", explanation.configuration},
      {"predicted_time_us", explanation.predicted_time_us},
      {"roofline_time_us", explanation.roofline_time_us()},
      {"compute_time_us", explanation.compute_time_us},
      {"memory_time_us", explanation.memory_time_us},
      {"work", to_json(explanation.work)},
      {"workspace_bytes", explanation.workspace_bytes},
      {"workspace", parts},
      {"notes", explanation.notes},
      {"kernels", to_json(explanation.verdicts)},
  };
}

std::string json_text(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace foveal::tools
