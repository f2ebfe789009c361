#include "support/baseline.hpp"

#include <cmath>
#include <cstddef>
#include <limits>

#include "core/half.hpp"

namespace foveal::test {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// The plain path for one element type: T only rounds.
template <class T>
class Plain {
 public:
  explicit Plain(const BaselineInput& input) : in_(input) {}

  BaselineForward forward() const {
    BaselineForward result;
    const std::size_t pairs = at(in_.nheads_q * in_.n_q * in_.n_k);
    result.scores.assign(pairs, kNegativeInfinity);
    result.capped.assign(pairs, 0.0f);
    result.weights.assign(pairs, 0.0f);
    result.lse.assign(at(in_.nheads_q * in_.n_q), kNegativeInfinity);
    result.out.assign(at(in_.n_q * in_.nheads_q * in_.headdim_v), 0.0f);
    for (std::int64_t h = 0; h < in_.nheads_q; ++h) {
      for (std::int64_t i = 0; i < in_.n_q; ++i) {
        score_row(h, i, result);
        softmax_row(h, i, result);
        out_row(h, i, result);
      }
    }
    return result;
  }

  BaselineBackward backward(const BaselineForward& forward) const {
    BaselineBackward result;
    result.dq.assign(in_.q.size(), 0.0f);
    result.dk.assign(in_.k.size(), 0.0f);
    result.dv.assign(in_.v.size(), 0.0f);
    result.dbias.assign(forward.weights.size(), 0.0f);
    result.dsinks.assign(at(in_.nheads_q), 0.0f);
    // One query head after the other; a KV head's gradient is the sum over its query heads' rounded
    // ones, as where a framework repeats k and v.
    std::vector<float> dscores(at(in_.n_q * in_.n_k));
    for (std::int64_t h = 0; h < in_.nheads_q; ++h) {
      dscores.assign(dscores.size(), 0.0f);
      for (std::int64_t i = 0; i < in_.n_q; ++i) dscore_row(h, i, forward, dscores, result);
      add_dq(h, dscores, result);
      add_dk(h, dscores, result);
      add_dv(h, forward, result);
    }
    for (float& value : result.dk) value = rounded(value);
    for (float& value : result.dv) value = rounded(value);
    return result;
  }

 private:
  static float rounded(float value) { return to_float(from_float<T>(value)); }

  [[nodiscard]] std::int64_t head_k(std::int64_t h) const {
    return h / (in_.nheads_q / in_.nheads_k);
  }
  [[nodiscard]] const float* q_row(std::int64_t i, std::int64_t h) const {
    return in_.q.data() + (i * in_.nheads_q + h) * in_.headdim;
  }
  [[nodiscard]] const float* k_row(std::int64_t j, std::int64_t h) const {
    return in_.k.data() + (j * in_.nheads_k + head_k(h)) * in_.headdim;
  }
  [[nodiscard]] const float* v_row(std::int64_t j, std::int64_t h) const {
    return in_.v.data() + (j * in_.nheads_k + head_k(h)) * in_.headdim_v;
  }
  [[nodiscard]] const float* dout_row(std::int64_t i, std::int64_t h) const {
    return in_.dout.data() + (i * in_.nheads_q + h) * in_.headdim_v;
  }

  static float dot(const float* a, const float* b, std::int64_t dim) {
    float lanes[8] = {};
    std::int64_t d = 0;
    for (; d + 8 <= dim; d += 8) {
      for (int lane = 0; lane < 8; ++lane) lanes[lane] += a[d + lane] * b[d + lane];
    }
    float sum = 0;
    for (; d < dim; ++d) sum += a[d] * b[d];
    for (const float lane : lanes) sum += lane;
    return rounded(sum);
  }

  [[nodiscard]] bool hidden(std::int64_t h, std::int64_t i, std::int64_t j) const {
    return in_.visible[at(i * in_.n_k + j)] == 0 ||
           (!in_.bias.empty() && in_.bias[at(in_.pair(h, i, j))] == kNegativeInfinity);
  }

  void score_row(std::int64_t h, std::int64_t i, BaselineForward& result) const {
    for (std::int64_t j = 0; j < in_.n_k; ++j) {
      if (hidden(h, i, j)) continue;
      const std::size_t pair = at(in_.pair(h, i, j));
      float score = rounded(dot(q_row(i, h), k_row(j, h), in_.headdim) * in_.scale);
      if (in_.softcap > 0) score = rounded(in_.softcap * std::tanh(score / in_.softcap));
      result.capped[pair] = score;
      if (!in_.bias.empty()) score = rounded(score + in_.bias[pair]);
      if (!in_.alibi.empty()) score = rounded(score + in_.alibi[pair]);
      result.scores[pair] = score;
    }
  }

  void softmax_row(std::int64_t h, std::int64_t i, BaselineForward& result) const {
    const float sink = in_.sinks.empty() ? kNegativeInfinity : in_.sinks[at(h)];
    float largest = sink;
    for (std::int64_t j = 0; j < in_.n_k; ++j) {
      largest = std::fmax(largest, result.scores[at(in_.pair(h, i, j))]);
    }
    if (largest == kNegativeInfinity) return;
    float sum = std::exp(sink - largest);
    for (std::int64_t j = 0; j < in_.n_k; ++j) {
      sum += std::exp(result.scores[at(in_.pair(h, i, j))] - largest);
    }
    result.lse[at(h * in_.n_q + i)] = largest + std::log(sum);
    for (std::int64_t j = 0; j < in_.n_k; ++j) {
      const std::size_t pair = at(in_.pair(h, i, j));
      result.weights[pair] = rounded(std::exp(result.scores[pair] - largest) / sum);
    }
  }

  /// The weight that multiplies v: after dropout.
  [[nodiscard]] float kept_weight(const BaselineForward& forward, std::size_t pair) const {
    if (in_.keep.empty()) return forward.weights[pair];
    return in_.keep[pair] != 0 ? rounded(forward.weights[pair] * in_.keep_scale) : 0.0f;
  }

  void out_row(std::int64_t h, std::int64_t i, BaselineForward& result) const {
    float* out = result.out.data() + (i * in_.nheads_q + h) * in_.headdim_v;
    for (std::int64_t j = 0; j < in_.n_k; ++j) {
      if (hidden(h, i, j)) continue;
      const float weight = kept_weight(result, at(in_.pair(h, i, j)));
      const float* v = v_row(j, h);
      for (std::int64_t d = 0; d < in_.headdim_v; ++d) out[d] += weight * v[d];
    }
    for (std::int64_t d = 0; d < in_.headdim_v; ++d) out[d] = rounded(out[d]);
  }

  /// Weight of a pair as the backward has it: from the lse, which is all that it is given.
  [[nodiscard]] float weight(const BaselineForward& forward, std::int64_t h, std::int64_t i,
                             std::int64_t j) const {
    const float lse = forward.lse[at(h * in_.n_q + i)];
    if (lse == kNegativeInfinity) return 0;
    return rounded(std::exp(forward.scores[at(in_.pair(h, i, j))] - lse));
  }

  /// Gradients of row i's scores before the scale, into dscores; of its bias and sink as well.
  void dscore_row(std::int64_t h, std::int64_t i, const BaselineForward& forward,
                  std::vector<float>& dscores, BaselineBackward& result) const {
    const float* out = forward.out.data() + (i * in_.nheads_q + h) * in_.headdim_v;
    const float dlse = in_.dlse.empty() ? 0.0f : in_.dlse[at(h * in_.n_q + i)];
    float delta = 0;
    for (std::int64_t d = 0; d < in_.headdim_v; ++d) delta += dout_row(i, h)[d] * out[d];
    for (std::int64_t j = 0; j < in_.n_k; ++j) {
      if (hidden(h, i, j)) continue;
      const std::size_t pair = at(in_.pair(h, i, j));
      float dweight = dot(dout_row(i, h), v_row(j, h), in_.headdim_v);
      if (!in_.keep.empty()) {
        dweight = in_.keep[pair] != 0 ? rounded(dweight * in_.keep_scale) : 0.0f;
      }
      float dscore = rounded(weight(forward, h, i, j) * (dweight - delta + dlse));
      result.dbias[pair] = dscore;
      if (in_.softcap > 0) {
        const float ratio = forward.capped[pair] / in_.softcap;
        dscore = rounded(dscore * rounded(1.0f - ratio * ratio));
      }
      dscores[at(i * in_.n_k + j)] = dscore;
    }
    const float lse = forward.lse[at(h * in_.n_q + i)];
    if (!in_.sinks.empty() && lse != kNegativeInfinity) {
      result.dsinks[at(h)] -= rounded(std::exp(in_.sinks[at(h)] - lse)) * (delta - dlse);
    }
  }

  void add_dq(std::int64_t h, const std::vector<float>& dscores, BaselineBackward& result) const {
    for (std::int64_t i = 0; i < in_.n_q; ++i) {
      float* dq = result.dq.data() + (i * in_.nheads_q + h) * in_.headdim;
      for (std::int64_t j = 0; j < in_.n_k; ++j) {
        const float dscore = dscores[at(i * in_.n_k + j)];
        if (dscore == 0) continue;
        for (std::int64_t d = 0; d < in_.headdim; ++d) dq[d] += dscore * k_row(j, h)[d];
      }
      for (std::int64_t d = 0; d < in_.headdim; ++d) dq[d] = rounded(rounded(dq[d]) * in_.scale);
    }
  }

  void add_dk(std::int64_t h, const std::vector<float>& dscores, BaselineBackward& result) const {
    std::vector<float> row(at(in_.headdim));
    for (std::int64_t j = 0; j < in_.n_k; ++j) {
      row.assign(row.size(), 0.0f);
      for (std::int64_t i = 0; i < in_.n_q; ++i) {
        const float dscore = dscores[at(i * in_.n_k + j)];
        if (dscore == 0) continue;
        for (std::int64_t d = 0; d < in_.headdim; ++d) row[at(d)] += dscore * q_row(i, h)[d];
      }
      float* dk = result.dk.data() + (j * in_.nheads_k + head_k(h)) * in_.headdim;
      for (std::int64_t d = 0; d < in_.headdim; ++d) {
        dk[d] += rounded(rounded(row[at(d)]) * in_.scale);
      }
    }
  }

  void add_dv(std::int64_t h, const BaselineForward& forward, BaselineBackward& result) const {
    std::vector<float> row(at(in_.headdim_v));
    for (std::int64_t j = 0; j < in_.n_k; ++j) {
      row.assign(row.size(), 0.0f);
      for (std::int64_t i = 0; i < in_.n_q; ++i) {
        const float weight = kept_weight(forward, at(in_.pair(h, i, j)));
        if (weight == 0) continue;
        for (std::int64_t d = 0; d < in_.headdim_v; ++d) row[at(d)] += weight * dout_row(i, h)[d];
      }
      float* dv = result.dv.data() + (j * in_.nheads_k + head_k(h)) * in_.headdim_v;
      for (std::int64_t d = 0; d < in_.headdim_v; ++d) dv[d] += rounded(row[at(d)]);
    }
  }

  const BaselineInput& in_;
};

}  // namespace

BaselineForward baseline_forward(const BaselineInput& input) {
  switch (input.dtype) {
    case DType::kFloat16: return Plain<Half>(input).forward();
    case DType::kBFloat16: return Plain<BFloat16>(input).forward();
    default: return Plain<float>(input).forward();
  }
}

BaselineBackward baseline_backward(const BaselineInput& input, const BaselineForward& forward) {
  switch (input.dtype) {
    case DType::kFloat16: return Plain<Half>(input).backward(forward);
    case DType::kBFloat16: return Plain<BFloat16>(input).backward(forward);
    default: return Plain<float>(input).backward(forward);
  }
}

}  // namespace foveal::test
