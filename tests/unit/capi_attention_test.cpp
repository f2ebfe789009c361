// foveal_attention_run: what a C caller can get right and wrong.
#include <cstring>
#include <limits>
#include <string_view>
#include <thread>

#include <gtest/gtest.h>

#include <foveal/problem.hpp>

#include "capi/attention_struct.hpp"
#include "unit/capi_problem.hpp"

namespace foveal::test {
namespace {

foveal_status run(const foveal_attention& attention) {
  return foveal_attention_run(&attention, nullptr, nullptr);
}

TEST(CapiAttention, FieldsAreTheOperandsInTheirOrder) {
  const auto fields = capi::tensor_fields();
  const auto infos = operands();
  ASSERT_EQ(fields.size(), infos.size());
  for (std::size_t i = 0; i < fields.size(); ++i) EXPECT_STREQ(fields[i].name, infos[i].name);
}

TEST(CapiAttention, ForwardIsRight) {
  for (const int causal : {0, 1}) {
    CProblem p;
    p.attention.causal = causal;
    ASSERT_EQ(run(p.attention), FOVEAL_OK) << foveal_last_error();
    p.expect_right();
  }
}

TEST(CapiAttention, NullStruct) {
  expect_failure(foveal_attention_run(nullptr, nullptr, nullptr), FOVEAL_INVALID_ARGUMENT,
                 {"foveal_attention is null"});
}

TEST(CapiAttention, StructSizeThatIsNone) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{4}, sizeof(foveal_attention) + 1,
                                 std::size_t{1} << 20, std::numeric_limits<std::size_t>::max()}) {
    CProblem p;
    p.attention.struct_size = size;
    expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT,
                   {"foveal_attention.struct_size is " + std::to_string(size),
                    "sizeof(foveal_attention), here " + std::to_string(sizeof(foveal_attention))});
  }
}

TEST(CapiAttention, OlderCallerHasFewerFields) {
  CProblem p;
  // Up to lse; what lies behind is not the caller's and must not be read as fields.
  p.attention.struct_size = offsetof(foveal_attention, dout);
  std::memset(reinterpret_cast<char*>(&p.attention) + p.attention.struct_size, 0x5a,
              sizeof p.attention - p.attention.struct_size);
  ASSERT_EQ(run(p.attention), FOVEAL_OK) << foveal_last_error();
  p.expect_right();
}

TEST(CapiAttention, NewerCallerMayHaveMoreFieldsThatAreZero) {
  struct Newer {
    foveal_attention known;
    std::int64_t added[3];
  };
  CProblem p;
  Newer newer{p.attention, {0, 0, 0}};
  newer.known.struct_size = sizeof newer;
  ASSERT_EQ(run(newer.known), FOVEAL_OK) << foveal_last_error();
  p.expect_right();

  newer.added[1] = 1;
  expect_failure(
      run(newer.known), FOVEAL_UNSUPPORTED,
      {"a field at byte " + std::to_string(sizeof(foveal_attention) + 8), "only 0 is allowed"});
}

TEST(CapiAttention, FlagsAreZeroOrOne) {
  using A = foveal_attention;
  const std::pair<const char*, std::int32_t A::*> flags[] = {
      {"causal", &A::causal},
      {"rotary_interleaved", &A::rotary_interleaved},
      {"deterministic", &A::deterministic},
      {"batch_invariant", &A::batch_invariant},
      {"has_softmax_scale", &A::has_softmax_scale},
      {"has_window", &A::has_window},
  };
  for (const auto& [name, flag] : flags) {
    CProblem p;
    p.attention.*flag = 2;
    expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT,
                   {std::string(name) + " is 2", "0 or 1"});
  }
}

TEST(CapiAttention, PassThatThereIsNot) {
  CProblem p;
  p.attention.pass = 4;
  expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT, {"pass 4"});
}

TEST(CapiAttention, OptionsReachTheEngine) {
  CProblem p;
  p.attention.has_window = 1;
  p.attention.window_size_left = 0;  // a row sees its own diagonal alone
  p.attention.window_size_right = 0;
  ASSERT_EQ(run(p.attention), FOVEAL_OK) << foveal_last_error();
  EXPECT_FLOAT_EQ(p.out.values[0], CProblem::kKeys - CProblem::kRows);

  p.attention.window_size_left = -2;
  expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT, {"window_size_left -2"});
  p.attention.has_window = 0;  // the sizes are not read
  EXPECT_EQ(run(p.attention), FOVEAL_OK) << foveal_last_error();

  p.attention.softcap = -1;
  expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT, {"softcap -1"});
  p.attention.softcap = 0;
  p.attention.softmax_scale = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(run(p.attention), FOVEAL_OK) << foveal_last_error();  // not read
  p.attention.has_softmax_scale = 1;
  expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT, {"softmax_scale"});
}

TEST(CapiAttention, ElementTypes) {
  struct Wrong {
    DLDataType dtype;
    const char* text;
  };
  const Wrong wrong[] = {{{kDLFloat, 64, 1}, "float64"},     {{kDLInt, 64, 1}, "int64"},
                         {{kDLComplex, 64, 1}, "complex64"}, {{kDLFloat, 32, 4}, "float32 x 4"},
                         {{kDLBfloat, 32, 1}, "bfloat32"},   {{kDLUInt, 16, 1}, "uint16"},
                         {{17, 8, 1}, "code 17 with 8 bits"}};
  for (const Wrong& each : wrong) {
    CProblem p;
    p.k.view.dtype = each.dtype;
    expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT,
                   {std::string("k has elements of type ") + each.text, "float16"});
  }
}

TEST(CapiAttention, ShapesThatAreNone) {
  for (const int ndim : {-1, 0, 5}) {
    CProblem p;
    p.v.view.ndim = ndim;
    expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT,
                   {"v has " + std::to_string(ndim) + " dimensions", "between 1 and 4"});
  }
  CProblem p;
  p.v.view.shape = nullptr;
  expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT, {"v has no shape"});
}

TEST(CapiAttention, SizesPastSixtyFourBits) {
  CProblem p;
  std::int64_t huge[4] = {std::int64_t{1} << 30, std::int64_t{1} << 30, std::int64_t{1} << 30, 16};
  p.k.view.shape = huge;
  expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT, {"k", "64 bits"});
  huge[1] = -1;
  expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT, {"k", "-1"});
}

TEST(CapiAttention, EngineMessagesPassUnchanged) {
  CProblem p;
  std::int64_t shape[4] = {1, CProblem::kKeys, 3, CProblem::kDim};
  p.k.view.shape = p.v.view.shape = shape;
  expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT, {"nheads_q", "4", "3"});

  CProblem without;
  without.attention.v = nullptr;
  expect_failure(run(without.attention), FOVEAL_INVALID_ARGUMENT, {"v is missing"});
}

TEST(CapiAttention, TensorsWithoutData) {
  CProblem p;
  p.q.view.data = nullptr;
  expect_failure(run(p.attention), FOVEAL_INVALID_ARGUMENT, {"q", "null"});
}

TEST(CapiAttention, Devices) {
  CProblem elsewhere;
  elsewhere.k.view.device = {kDLMetal, 0};
  expect_failure(run(elsewhere.attention), FOVEAL_INVALID_ARGUMENT,
                 {"k is on a device of DLPack type 8"});

  CProblem mixed;
  mixed.v.view.device = {kDLCUDA, 1};
  expect_failure(run(mixed.attention), FOVEAL_INVALID_ARGUMENT,
                 {"v is on cuda:1 and q on cpu", "one device"});

  CProblem pinned;  // host memory counts as the CPU's
  pinned.v.view.device = {kDLCUDAHost, 0};
  EXPECT_EQ(run(pinned.attention), FOVEAL_OK) << foveal_last_error();
  pinned.expect_right();

  CProblem missing;
  for (DLTensor* view :
       {&missing.q.view, &missing.k.view, &missing.v.view, &missing.out.view, &missing.lse.view}) {
    view->device = {kDLCUDA, 99};
  }
  expect_failure(run(missing.attention), FOVEAL_UNSUPPORTED, {"99"});
}

TEST(CapiAttention, DeviceArgument) {
  foveal_device device{};
  CProblem p;
  const auto run_on = [&] { return foveal_attention_run(&p.attention, &device, nullptr); };
  expect_failure(run_on(), FOVEAL_INVALID_ARGUMENT, {"foveal_device.struct_size is 0"});
  device.struct_size = sizeof device;
  EXPECT_EQ(run_on(), FOVEAL_OK) << foveal_last_error();
  device.num_threads = 2;
  EXPECT_EQ(run_on(), FOVEAL_OK) << foveal_last_error();
  p.expect_right();
  device.num_threads = -1;
  expect_failure(run_on(), FOVEAL_INVALID_ARGUMENT, {"num_threads is -1"});
  device.num_threads = 0;
  device.device = {kDLCUDA, 0};
  expect_failure(run_on(), FOVEAL_INVALID_ARGUMENT, {"foveal_device is cuda:0", "on cpu"});
  device.device = {kDLCPU, 0};
  device.reserved = 1;
  expect_failure(run_on(), FOVEAL_UNSUPPORTED, {"reserved is 1"});
}

TEST(CapiAttention, StridesAndByteOffset) {
  CProblem p;
  // v as [batch, heads, seqlen, dim] in memory, two elements into its storage.
  std::vector<float> storage(p.v.values.size() + 2, -1e6f);
  std::int64_t strides[4];
  foveal_bhsd_strides(p.v.view.shape, strides);
  for (std::int64_t j = 0; j < CProblem::kKeys; ++j) {
    for (std::int64_t h = 0; h < CProblem::kHeadsK; ++h) {
      for (std::int64_t d = 0; d < CProblem::kDim; ++d) {
        storage[static_cast<std::size_t>(2 + j * strides[1] + h * strides[2] + d)] =
            static_cast<float>(j);
      }
    }
  }
  EXPECT_EQ(strides[0], CProblem::kHeadsK * CProblem::kKeys * CProblem::kDim);
  p.v.view.data = storage.data();
  p.v.view.strides = strides;
  p.v.view.byte_offset = 2 * sizeof(float);
  p.attention.causal = 1;
  ASSERT_EQ(run(p.attention), FOVEAL_OK) << foveal_last_error();
  p.expect_right();
}

TEST(CapiAttention, MasksAsBoolOrUint8) {
  for (const std::uint8_t code : {std::uint8_t{6}, static_cast<std::uint8_t>(kDLUInt)}) {
    CProblem p;
    CTensor<std::uint8_t> mask({1, 1, CProblem::kRows, CProblem::kKeys}, {code, 8, 1});
    for (std::int64_t i = 0; i < CProblem::kRows; ++i) {
      for (std::int64_t j = 0; j <= CProblem::kKeys - CProblem::kRows + i; ++j) {
        mask.values[static_cast<std::size_t>(i * CProblem::kKeys + j)] = 1;
      }
    }
    p.attention.bias = &mask.view;
    ASSERT_EQ(run(p.attention), FOVEAL_OK) << foveal_last_error();
    p.attention.causal = 1;  // what the mask said
    p.expect_right();
  }
}

TEST(CapiThreads, HaveALastErrorEach) {
  CProblem p;
  p.attention.causal = 7;
  ASSERT_EQ(run(p.attention), FOVEAL_INVALID_ARGUMENT);
  const std::string mine = foveal_last_error();
  std::thread other([] {
    EXPECT_STREQ(foveal_last_error(), "");
    EXPECT_EQ(foveal_attention_run(nullptr, nullptr, nullptr), FOVEAL_INVALID_ARGUMENT);
    EXPECT_STREQ(foveal_last_error(), "foveal_attention is null");
  });
  other.join();
  EXPECT_EQ(foveal_last_error(), mine);
  p.attention.causal = 0;
  ASSERT_EQ(run(p.attention), FOVEAL_OK);
  EXPECT_EQ(foveal_last_error(), mine);  // success leaves it alone
}

TEST(CapiErrors, StatusNames) {
  EXPECT_STREQ(foveal_status_name(FOVEAL_OK), "ok");
  EXPECT_STREQ(foveal_status_name(FOVEAL_INVALID_ARGUMENT), "invalid argument");
  EXPECT_STREQ(foveal_status_name(FOVEAL_INTERNAL), "internal error");
  EXPECT_STREQ(foveal_status_name(-1), "unknown");
  EXPECT_STREQ(foveal_status_name(7), "unknown");
}

}  // namespace
}  // namespace foveal::test
