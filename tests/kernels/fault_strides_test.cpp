// Fault class 7: distances between rows that don't fit in 32 bits. The buffers are mapped without
// memory behind them; only the rows that the tensors have are ever touched.
#include <sys/mman.h>

#include <cstddef>

#include "kernels/fault_probe.hpp"

namespace foveal::test {
namespace {

constexpr std::int64_t kFar = std::int64_t{1} << 31;
constexpr std::size_t kPage = 4096;

/// Address space between two pages that can't be touched.
class SparseBuffer {
 public:
  explicit SparseBuffer(std::int64_t bytes)
      : bytes_((static_cast<std::size_t>(bytes) + kPage - 1) / kPage * kPage) {
    void* mapped = mmap(nullptr, bytes_ + 2 * kPage, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return;
    map_ = static_cast<std::byte*>(mapped);
    if (mprotect(map_ + kPage, bytes_, PROT_READ | PROT_WRITE) != 0) {
      munmap(map_, bytes_ + 2 * kPage);
      map_ = nullptr;
    }
  }
  ~SparseBuffer() {
    if (map_ != nullptr) munmap(map_, bytes_ + 2 * kPage);
  }
  SparseBuffer(const SparseBuffer&) = delete;
  SparseBuffer& operator=(const SparseBuffer&) = delete;

  [[nodiscard]] bool mapped() const { return map_ != nullptr; }
  /// Where `bytes` bytes end at the last one that may be touched.
  [[nodiscard]] std::byte* last(std::int64_t bytes) {
    return map_ + kPage + bytes_ - static_cast<std::size_t>(bytes);
  }

 private:
  std::byte* map_ = nullptr;
  std::size_t bytes_;
};

std::int64_t span_bytes(const TensorSpec& spec) {
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(spec.rank); ++axis) {
    last += (spec.shape[axis] - 1) * spec.strides[axis];
  }
  return (last + 1) * dtype_bytes(spec.dtype);
}

/// One operand of a built case moved into a sparse buffer with other strides, its values copied.
class FarOperand {
 public:
  FarOperand(BuiltCase& built, std::string_view name, std::size_t axis, std::int64_t stride)
      : near_(built.bench.at(name)), spec_(near_.spec) {
    spec_.strides[axis] = stride;
    buffer_ = std::make_unique<SparseBuffer>(span_bytes(spec_));
    if (!buffer_->mapped()) return;
    data_ = buffer_->last(span_bytes(spec_));
    for_each_index(spec_, [&](const Index& index) {
      store_element(spec_.dtype, data_, offset_of(spec_, index), near_.get(index));
    });
    built.bench.problem.*(near_.info->spec) = spec_;
    if (near_.info->input != nullptr) {
      built.bench.tensors.*(near_.info->input) = data_;
    } else {
      built.bench.tensors.*(near_.info->output) = data_;
    }
  }

  [[nodiscard]] bool mapped() const { return data_ != nullptr; }

  /// The values where they were before, for comparison.
  void copy_back() {
    for_each_index(spec_, [&](const Index& index) {
      near_.set(index, load_element(spec_.dtype, data_, offset_of(spec_, index)));
    });
  }

 private:
  Operand& near_;
  TensorSpec spec_;
  std::unique_ptr<SparseBuffer> buffer_;
  std::byte* data_ = nullptr;
};

/// The case with one operand far apart gives the bits that it gives with all operands adjacent.
void expect_same_when_far(const Case& c, std::string_view name, std::size_t axis,
                          std::int64_t stride) {
  SCOPED_TRACE(std::string(name) + " far apart in " + to_line(c));
  BuiltCase adjacent(c);
  BuiltCase far(c);
  FarOperand moved(far, name, axis, stride);
  if (!moved.mapped()) GTEST_SKIP() << "no address space for " << 2 * stride << " bytes";
  ASSERT_TRUE(adjacent.run());
  const Status status = far.run();
  ASSERT_TRUE(status) << status.message();
  moved.copy_back();
  for (const Operand& operand : adjacent.bench.all()) {
    if (!is_output_of(c.pass, operand.info->name)) continue;
    EXPECT_TRUE(same_bits(operand, far.bench.at(operand.info->name)));
  }
}

TEST(Fault07_FarStrides, ForwardHeads) {
  for (const Case& c : in_every_kernel({.lens = {{8, 8}}, .nheads_k = 2})) {
    for (const char* name : {"q", "k", "v", "out"}) expect_same_when_far(c, name, 2, kFar);
  }
}

TEST(Fault07_FarStrides, BackwardHeads) {
  for (const Case& c :
       in_every_kernel({.pass = Pass::kBackward, .lens = {{8, 8}}, .nheads_k = 2})) {
    for (const char* name : {"q", "k", "v", "out", "dout", "dq", "dk", "dv"}) {
      expect_same_when_far(c, name, 2, kFar);
    }
  }
}

TEST(Fault07_FarStrides, BackwardPackedTokens) {
  for (const Case& c : in_every_kernel({.pass = Pass::kBackward,
                       .lens = {{3, 3}, {1, 1}},
                       .q_form = QForm::kPacked,
                       .k_form = KForm::kPacked})) {
    expect_same_when_far(c, "dout", 0, kFar / 2);
  }
}

TEST(Fault07_FarStrides, PagesFarIntoTheCache) {
  for (const Case& c :
       in_every_kernel({.lens = {{1, 40}}, .k_form = KForm::kPaged, .page_size = 16})) {
    const std::int64_t num_pages = kFar / (16 * c.headdim) + 8;
    BuiltCase near(c);
    BuiltCase far(c);
    std::vector<std::unique_ptr<SparseBuffer>> caches;
    for (const std::string_view name : {"k", "v"}) {
      const Operand& from = near.bench.at(name);
      const TensorSpec spec = TensorSpec::contiguous(c.dtype, {num_pages, 16, 1, c.headdim});
      caches.push_back(std::make_unique<SparseBuffer>(span_bytes(spec)));
      if (!caches.back()->mapped()) GTEST_SKIP() << "no address space for a cache of 4 GB or more";
      std::byte* data = caches.back()->last(span_bytes(spec));
      for (std::int64_t page = 0; page < 3; ++page) {
        for (std::int64_t row = 0; row < 16; ++row) {
          for (std::int64_t d = 0; d < c.headdim; ++d) {
            const std::int64_t from_page = near.sequences[0].pages[static_cast<std::size_t>(page)];
            store_element(spec.dtype, data, offset_of(spec, {num_pages - 3 + page, row, 0, d}),
                          from.get({from_page, row, 0, d}));
          }
        }
      }
      far.bench.problem.*(from.info->spec) = spec;
      far.bench.tensors.*(from.info->input) = data;
    }
    for (std::int64_t page = 0; page < 3; ++page) {
      far.bench.at("block_table").set({0, page}, static_cast<double>(num_pages - 3 + page));
    }
    ASSERT_TRUE(near.run());
    const Status status = far.run();
    ASSERT_TRUE(status) << status.message();
    EXPECT_TRUE(same_bits(near.bench.at("out"), far.bench.at("out")));
    EXPECT_TRUE(same_bits(near.bench.at("lse"), far.bench.at("lse")));
  }
}

}  // namespace
}  // namespace foveal::test
