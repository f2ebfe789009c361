// Attention as docs/numerics.md writes it, step by step in one dtype: every matrix product, the
// scores after each step, the softmax and each gradient are rounded to the dtype before the next
// step uses them; the backward starts from the rounded out and the fp32 lse. A kernel may not be
// more than twice as far from the fp64 oracle as this.
#pragma once

#include <cstdint>
#include <vector>

#include <foveal/tensor.hpp>

namespace foveal::test {

/// One sequence, gathered: nothing here has strides, pages or padding. Values are those of the
/// dtype already.
struct BaselineInput {
  DType dtype = DType::kFloat32;
  std::int64_t n_q = 0, n_k = 0;
  std::int64_t nheads_q = 1, nheads_k = 1;
  std::int64_t headdim = 1, headdim_v = 1;
  float scale = 1;
  float softcap = 0;
  float keep_scale = 1;               ///< Of the weights that dropout keeps.
  std::vector<float> q;               ///< [n_q, nheads_q, headdim]
  std::vector<float> k;               ///< [n_k, nheads_k, headdim]
  std::vector<float> v;               ///< [n_k, nheads_k, headdim_v]
  std::vector<std::uint8_t> visible;  ///< [n_q, n_k]: causal and window
  std::vector<float> bias;            ///< [nheads_q, n_q, n_k] or empty; -inf hides the key
  std::vector<float> alibi;           ///< [nheads_q, n_q, n_k] or empty
  std::vector<float> sinks;           ///< [nheads_q] or empty
  std::vector<std::uint8_t> keep;     ///< [nheads_q, n_q, n_k] or empty
  std::vector<float> dout;            ///< [n_q, nheads_q, headdim_v], backward only
  std::vector<float> dlse;            ///< [nheads_q, n_q] or empty

  [[nodiscard]] std::int64_t pair(std::int64_t h, std::int64_t i, std::int64_t j) const {
    return (h * n_q + i) * n_k + j;
  }
};

struct BaselineForward {
  std::vector<float> out;      ///< as q, with headdim_v
  std::vector<float> lse;      ///< [nheads_q, n_q], in fp32 from the rounded scores
  std::vector<float> scores;   ///< [nheads_q, n_q, n_k], -inf where hidden
  std::vector<float> capped;   ///< the scores between softcap and bias
  std::vector<float> weights;  ///< softmax, before dropout
};

struct BaselineBackward {
  std::vector<float> dq, dk, dv;  ///< as q, k, v
  std::vector<float> dbias;       ///< [nheads_q, n_q, n_k]
  std::vector<float> dsinks;      ///< [nheads_q]
};

[[nodiscard]] BaselineForward baseline_forward(const BaselineInput& input);
[[nodiscard]] BaselineBackward baseline_backward(const BaselineInput& input,
                                                 const BaselineForward& forward);

}  // namespace foveal::test
