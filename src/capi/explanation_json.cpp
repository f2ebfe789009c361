#include "capi/explanation_json.hpp"

#include "capi/json_writer.hpp"

namespace foveal::capi {
namespace {

const char* outcome_name(KernelVerdict::Outcome outcome) {
  switch (outcome) {
    case KernelVerdict::Outcome::kChosen: return "chosen";
    case KernelVerdict::Outcome::kSlower: return "slower";
    case KernelVerdict::Outcome::kUnsupported: return "unsupported";
  }
  return "unknown";
}

void write_device(JsonWriter& json, const DeviceInfo& device) {
  json.begin_object();
  json.member("type", device.type == DeviceType::kCpu ? "cpu" : "cuda");
  json.member("index", device.index);
  json.member("name", device.name);
  json.member("present", device.present);
  if (device.type == DeviceType::kCpu) {
    json.member("num_threads", device.num_threads);
    json.member("isa", device.isa);
    json.member("l2_bytes", device.l2_bytes);
  } else {
    json.member("sm", device.sm);
    json.member("num_sms", device.num_sms);
    json.member("smem_per_block_bytes", device.smem_per_block_bytes);
  }
  json.member("fp32_gflops", device.fp32_gflops);
  json.member("fp16_gflops", device.fp16_gflops);
  json.member("bf16_gflops", device.bf16_gflops);
  json.member("read_gbs", device.read_gbs);
  json.member("limits_source", device.limits_source);
  json.end_object();
}

void write_verdicts(JsonWriter& json, const Explanation& explanation) {
  json.key("verdicts");
  json.begin_array();
  for (const KernelVerdict& verdict : explanation.verdicts) {
    json.begin_object();
    json.member("name", verdict.name);
    json.member("outcome", outcome_name(verdict.outcome));
    json.member("reason", verdict.reason);
    json.member("predicted_time_us", verdict.predicted_time_us);
    json.member("workspace_bytes", verdict.workspace_bytes);
    json.end_object();
  }
  json.end_array();
}

void write_workspace(JsonWriter& json, const Explanation& explanation) {
  json.key("workspace");
  json.begin_array();
  for (const WorkspacePart& part : explanation.workspace) {
    json.begin_object();
    json.member("name", part.name);
    json.member("bytes", part.bytes);
    json.end_object();
  }
  json.end_array();
  json.member("workspace_bytes", explanation.workspace_bytes);
}

void write_work(JsonWriter& json, const AttentionWork& work) {
  json.key("work");
  json.begin_object();
  json.member("visible_pairs", work.visible_pairs);
  json.member("flops", work.flops);
  json.member("read_bytes", work.read_bytes);
  json.member("written_bytes", work.written_bytes);
  json.end_object();
}

}  // namespace

std::string explanation_json(const Explanation& explanation) {
  JsonWriter json;
  json.begin_object();
  json.member("problem", explanation.problem);
  json.key("device");
  write_device(json, explanation.device);
  json.member("kernel", explanation.kernel);
  json.member("configuration", explanation.configuration);
  write_verdicts(json, explanation);
  json.key("notes");
  json.begin_array();
  for (const std::string& note : explanation.notes) json.value(note);
  json.end_array();
  write_workspace(json, explanation);
  write_work(json, explanation.work);
  json.member("compute_time_us", explanation.compute_time_us);
  json.member("memory_time_us", explanation.memory_time_us);
  json.member("roofline_time_us", explanation.roofline_time_us());
  json.member("predicted_time_us", explanation.predicted_time_us);
  json.end_object();
  return json.text();
}

std::string devices_json(std::span<const DeviceInfo> devices) {
  JsonWriter json;
  json.begin_array();
  for (const DeviceInfo& device : devices) write_device(json, device);
  json.end_array();
  return json.text();
}

}  // namespace foveal::capi
