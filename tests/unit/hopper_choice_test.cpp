// Which kernel the planner chooses on sm_90: for training one of the Hopper kernels whatever the
// headdim and the length, and for prefill where the work fills their tiles.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>
#include <foveal/attention.hpp>

#include "unit/hopper_backward_problem.hpp"

namespace foveal::test {
namespace {

std::string kernel_for(const AttentionProblem& p) {
  const Result<Explanation> explanation = explain(p, gpu_of(90));
  return explanation ? explanation->kernel : explanation.status().message();
}

AttentionProblem causal_forward(AttentionProblem p) {
  p.pass = Pass::kForward;
  p.dout = p.dq = p.dk = p.dv = {};
  return p;
}

TEST(HopperChoice, TakesEveryHeaddimByAHopperKernel) {
  if (FOVEAL_WITH_CUDA == 0) GTEST_SKIP() << "no CUDA kernel is in the table of this build";
  for (const std::int64_t seqlen : {1024, 4096, 16384}) {
    for (std::int64_t headdim = 8; headdim <= 512; headdim += 8) {
      SCOPED_TRACE(::testing::Message() << "seqlen " << seqlen << " headdim " << headdim);
      AttentionProblem p = dense_backward(seqlen, headdim, DType::kBFloat16);
      p.causal = true;
      const bool wide = headdim > 256;
      EXPECT_EQ(kernel_for(p), wide ? "hopper_wide_bwd" : "hopper_bwd");
      // Eight heads of 1K rows are too few tiles of 128 rows, and portable_fwd has one of 32
      // columns.
      if (!wide && (seqlen < 4096 || headdim <= 32)) continue;
      EXPECT_EQ(kernel_for(causal_forward(p)), wide ? "hopper_wide_fwd" : "hopper_fwd");
    }
  }
}

TEST(HopperChoice, TakesPackedDocuments) {
  if (FOVEAL_WITH_CUDA == 0) GTEST_SKIP() << "no CUDA kernel is in the table of this build";
  for (const std::int64_t batch : {1, 4, 64}) {
    for (const std::int64_t headdim : {64, 80, 128, 192, 256, 264, 320, 384, 448, 512}) {
      SCOPED_TRACE(::testing::Message() << batch << " documents, headdim " << headdim);
      AttentionProblem p = packed_backward(16384, batch, headdim);
      p.causal = true;
      const bool wide = headdim > 256;
      EXPECT_EQ(kernel_for(p), wide ? "hopper_wide_bwd" : "hopper_bwd");
      EXPECT_EQ(kernel_for(causal_forward(p)), wide ? "hopper_wide_fwd" : "hopper_fwd");
    }
  }
}

}  // namespace
}  // namespace foveal::test
