#include <array>

#include <foveal/problem.hpp>

namespace foveal {
namespace {

using P = AttentionProblem;
using T = AttentionTensors;

constexpr OperandInfo input(const char* name, TensorSpec P::*spec, const void* T::*data) {
  return {.name = name, .spec = spec, .input = data, .output = nullptr};
}
constexpr OperandInfo output(const char* name, TensorSpec P::*spec, void* T::*data) {
  return {.name = name, .spec = spec, .input = nullptr, .output = data};
}

constexpr std::array kOperands = {
    input("q", &P::q, &T::q),
    input("k", &P::k, &T::k),
    input("v", &P::v, &T::v),
    output("out", &P::out, &T::out),
    output("lse", &P::lse, &T::lse),
    input("dout", &P::dout, &T::dout),
    input("dlse", &P::dlse, &T::dlse),
    output("dq", &P::dq, &T::dq),
    output("dk", &P::dk, &T::dk),
    output("dv", &P::dv, &T::dv),
    input("bias", &P::bias, &T::bias),
    output("dbias", &P::dbias, &T::dbias),
    input("sinks", &P::sinks, &T::sinks),
    output("dsinks", &P::dsinks, &T::dsinks),
    input("alibi_slopes", &P::alibi_slopes, &T::alibi_slopes),
    input("cu_seqlens_q", &P::cu_seqlens_q, &T::cu_seqlens_q),
    input("cu_seqlens_k", &P::cu_seqlens_k, &T::cu_seqlens_k),
    input("seqused_q", &P::seqused_q, &T::seqused_q),
    input("seqused_k", &P::seqused_k, &T::seqused_k),
    input("leftpad_k", &P::leftpad_k, &T::leftpad_k),
    input("block_table", &P::block_table, &T::block_table),
    input("cache_batch_idx", &P::cache_batch_idx, &T::cache_batch_idx),
    input("k_new", &P::k_new, &T::k_new),
    input("v_new", &P::v_new, &T::v_new),
    input("rotary_cos", &P::rotary_cos, &T::rotary_cos),
    input("rotary_sin", &P::rotary_sin, &T::rotary_sin),
    output("q_rotated", &P::q_rotated, &T::q_rotated),
    input("out_a", &P::out_a, &T::out_a),
    input("lse_a", &P::lse_a, &T::lse_a),
    input("out_b", &P::out_b, &T::out_b),
    input("lse_b", &P::lse_b, &T::lse_b),
};

}  // namespace

std::span<const OperandInfo> operands() { return kOperands; }

const char* pass_name(Pass pass) {
  switch (pass) {
    case Pass::kForward: return "forward";
    case Pass::kBackward: return "backward";
    case Pass::kAppend: return "append";
    case Pass::kMerge: return "merge";
  }
  return "unknown";
}

}  // namespace foveal
