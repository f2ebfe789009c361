#include "tools/safetensors.hpp"
#include "support/source_directory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "temporary_directory.hpp"

namespace foveal::tools {
namespace {

/// `header_bytes` is what the file claims; absent, the truth.
std::string file_bytes(std::string_view header, std::size_t data_bytes,
                       std::optional<std::uint64_t> header_bytes = std::nullopt) {
  const std::uint64_t size = header_bytes.value_or(header.size());
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  bytes += header;
  for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
  return bytes;
}

Result<SafetensorsFile> parse(std::string_view bytes) {
  return SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "f");
}

std::string message_of(std::string_view bytes) {
  const Result<SafetensorsFile> file = parse(bytes);
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument) << bytes;
  return file.status().message();
}

/// A header whose one tensor has these fields.
std::string one(std::string_view fields) { return "{\"q\":{" + std::string(fields) + "}}"; }

std::vector<std::byte> counting_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 37);
  return bytes;
}

TEST(Safetensors, ReadsTensorsInTheHeadersOrder) {
  const std::string bytes =
      file_bytes(R"({"b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},)"
                 R"("__metadata__":{"layout":"thd","causal":"1"},)"
                 R"("a":{"data_offsets":[0,8],"shape":[1,2],"dtype":"F32"}}  )",
                 12);
  const Result<SafetensorsFile> file = parse(bytes);
  ASSERT_TRUE(file) << file.status().message();
  EXPECT_EQ(file->metadata(), (SafetensorsMetadata{{"layout", "thd"}, {"causal", "1"}}));
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->tensors()[0].name, "b");
  const TensorView* a = file->find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, FileDType::kF32);
  EXPECT_EQ(a->shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(a->numel(), 2);
  ASSERT_EQ(a->data.size(), 8u);
  EXPECT_EQ(a->data[7], std::byte{7});
  EXPECT_EQ(file->find("c"), nullptr);
}

TEST(Safetensors, ReadsScalarsEmptyTensorsAndEmptyFiles) {
  const std::string bytes = file_bytes(R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[8,8]},)"
                                       R"("z":{"dtype":"I32","shape":[0],"data_offsets":[0,0]},)"
                                       R"("s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})",
                                       8);
  const Result<SafetensorsFile> file = parse(bytes);
  ASSERT_TRUE(file) << file.status().message();
  EXPECT_EQ(file->find("s")->numel(), 1);
  EXPECT_EQ(file->find("e")->numel(), 0);
  EXPECT_TRUE(file->find("z")->data.empty());
  const Result<SafetensorsFile> empty = parse(file_bytes("{}", 0));
  ASSERT_TRUE(empty) << empty.status().message();
  EXPECT_TRUE(empty->tensors().empty());
}

TEST(Safetensors, SaysWhichTensorsAreMisaligned) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  for (std::size_t spaces = 0; spaces < 8; ++spaces) {
    const std::string bytes = file_bytes(header + std::string(spaces, ' '), 5);
    alignas(8) std::array<char, 160> storage{};
    ASSERT_LE(bytes.size(), storage.size());
    std::copy(bytes.begin(), bytes.end(), storage.begin());
    const Result<SafetensorsFile> file = parse({storage.data(), bytes.size()});
    ASSERT_TRUE(file) << file.status().message();
    EXPECT_TRUE(file->find("a")->is_aligned());
    const std::size_t begin_of_b = bytes.size() - 4;
    EXPECT_EQ(file->find("b")->is_aligned(), begin_of_b % 4 == 0) << spaces;
  }
}

TEST(Safetensors, NamesEveryDType) {
  const std::array names{"BOOL", "U8",      "I8",      "U16", "I16",  "U32", "I32", "U64",
                         "I64",  "F8_E4M3", "F8_E5M2", "F16", "BF16", "F32", "F64"};
  const std::array bytes{1, 1, 1, 2, 2, 4, 4, 8, 8, 1, 1, 2, 2, 4, 8};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::optional<FileDType> dtype = file_dtype_from_name(names[i]);
    ASSERT_TRUE(dtype) << names[i];
    EXPECT_EQ(file_dtype_name(*dtype), names[i]);
    EXPECT_EQ(file_dtype_bytes(*dtype), bytes[i]) << names[i];
    const DType computed = to_dtype(*dtype);
    if (computed == DType::kNone) continue;
    EXPECT_EQ(to_file_dtype(computed), dtype) << names[i];
    EXPECT_EQ(dtype_bytes(computed), bytes[i]) << names[i];
  }
  for (const DType dtype :
       {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kInt32, DType::kBool}) {
    ASSERT_TRUE(to_file_dtype(dtype)) << dtype_name(dtype);
    EXPECT_EQ(to_dtype(*to_file_dtype(dtype)), dtype);
  }
  EXPECT_FALSE(to_file_dtype(DType::kNone));
  EXPECT_FALSE(file_dtype_from_name("f16"));
}

TEST(Safetensors, RefusesDamagedFiles) {
  EXPECT_EQ(message_of("abc"),
            "f: 3 bytes are too few for a safetensors file, which begins with an 8-byte header "
            "size");
  EXPECT_EQ(message_of(file_bytes("{}", 5, 1000)),
            "f: header size 1000: only 7 bytes follow in the file");
  EXPECT_EQ(message_of(file_bytes("{}", 0, 100'000'001)),
            "f: header size 100000001: the safetensors format allows at most 100000000 bytes");
  EXPECT_EQ(message_of(file_bytes("{}", 0, 100'000'000)),
            "f: header size 100000000: only 2 bytes follow in the file");
  EXPECT_EQ(message_of(file_bytes(one(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"), 7)),
            "f: tensor 'q': data_offsets [0, 16] end past the 7 bytes of data: wrong, or the file "
            "is truncated");
}

struct HeaderCase {
  std::string header;
  std::string message;  // behind "f: "
};

TEST(Safetensors, RefusesHeadersThatAreNotTheFormats) {
  const std::string fields = R"("dtype":"U8","shape":[1],"data_offsets":[0,1])";
  const std::vector<HeaderCase> cases{
      {"", "header must begin with '{', got nothing"},
      {" {}", "header must begin with '{', got ' '"},
      {"[]", "header must begin with '{', got '['"},
      {"\xef\xbb\xbf{}", "header must begin with '{', got '\\xef'"},
      {"{", "header: not JSON: the text ends before its value is complete"},
      {"{hello", "header: not JSON at line 1, column 2: '{h'"},
      {"{} {}", "header: not JSON at line 1, column 4: '{} {'"},
      {std::string("{}\0\0x", 5), "header: not JSON: byte 3 is 0"},
      {"{\"\xff\":1}", "header: not JSON at line 1, column 3: '{\"\\xff'"},
      {R"({"q":null})", "header: tensor 'q' must be an object, got null"},
      {R"({"q":[]})", "header: tensor 'q' must be an object, got an array"},
      {"{\"q\":{" + fields + "},\"q\":{" + fields + "}}", "header: 'q' stands twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "header: '__metadata__' stands twice"},
      {R"({"__metadata__":"x"})", "header: __metadata__ must be an object of strings, got 'x'"},
      {R"({"__metadata__":{"causal":1}})", "header: metadata 'causal' must be a string, got 1"},
      {R"({"__metadata__":{"a":{}}})", "header: metadata 'a' must be a string, got an object"},
      {R"({"__metadata__":{"a":"1","a":"1"}})", "header: metadata 'a' stands twice"},
      {one(fields + ",\"strides\":[1]"),
       "header: tensor 'q': unknown key 'strides': allowed are dtype, shape, data_offsets"},
      {one(fields + ",\"shape\":[1]"), "header: tensor 'q': shape stands twice"},
      {one(R"("shape":[1],"data_offsets":[0,1])"), "header: tensor 'q': dtype is missing"},
      {one(R"("dtype":"U8","data_offsets":[0,1])"), "header: tensor 'q': shape is missing"},
      {one(R"("dtype":"U8","shape":[1])"), "header: tensor 'q': data_offsets is missing"},
      {one(R"("dtype":"F33")"),
       "header: tensor 'q': unknown dtype 'F33': must be one of BOOL, U8, I8, U16, I16, U32, I32, "
       "U64, I64, F8_E4M3, F8_E5M2, F16, BF16, F32, F64"},
      {one(R"("dtype":true)"), "header: tensor 'q': dtype must be a string, got true"},
      {one(R"("shape":1)"), "header: tensor 'q': shape must be an array, got 1"},
      {one(R"("shape":[2,-1])"),
       "header: tensor 'q': shape[1] must be an integer from 0 to 2^63 - 1, got -1"},
      {one(R"("shape":[-0])"),
       "header: tensor 'q': shape[0] must be an integer from 0 to 2^63 - 1, got -0"},
      {one(R"("shape":[1.5])"),
       "header: tensor 'q': shape[0] must be an integer from 0 to 2^63 - 1, got 1.5"},
      {one(R"("shape":["1"])"),
       "header: tensor 'q': shape[0] must be an integer from 0 to 2^63 - 1, got '1'"},
      {one(R"("shape":[[1]])"),
       "header: tensor 'q': shape[0] must be an integer from 0 to 2^63 - 1, got an array"},
      {one(R"("shape":[9223372036854775808])"),
       "header: tensor 'q': shape[0] must be an integer from 0 to 2^63 - 1, got "
       "9223372036854775808"},
      {one(R"("shape":[18446744073709551616])"),
       "header: tensor 'q': shape[0] must be an integer from 0 to 2^63 - 1, got "
       "18446744073709551616"},
      {one(R"("data_offsets":"0")"), "header: tensor 'q': data_offsets must be an array, got '0'"},
      {one(R"("data_offsets":[0,null])"),
       "header: tensor 'q': data_offsets[1] must be an integer from 0 to 2^63 - 1, got null"},
      {one(R"("data_offsets":[0])"), "header: tensor 'q': data_offsets has 1 numbers, not 2"},
      {one(R"("data_offsets":[0,1,2])"),
       "header: tensor 'q': data_offsets has more than 2 numbers"},
      {R"({"a\nb":0})", "header: tensor 'a\\x0ab' must be an object, got 0"},
  };
  for (const HeaderCase& c : cases) {
    EXPECT_EQ(message_of(file_bytes(c.header, 1)), "f: " + c.message) << c.header;
  }
}

TEST(Safetensors, RefusesOffsetsThatDoNotFitTheData) {
  const auto two = [](std::string_view q, std::string_view k) {
    return R"({"q":{"dtype":"F32","shape":[2],"data_offsets":)" + std::string(q) +
           R"(},"k":{"dtype":"F32","shape":[2],"data_offsets":)" + std::string(k) + "}}";
  };
  const std::vector<HeaderCase> cases{
      {two("[0,8]", "[4,12]"), "tensors 'q' and 'k' overlap: data_offsets [0, 8] and [4, 12]"},
      {two("[8,16]", "[8,16]"), "bytes 0 to 8 of the data belong to no tensor, before 'q'"},
      {two("[8,16]", "[0,8]"), ""},
      {two("[0,8]", "[0,8]"), "tensors 'q' and 'k' overlap: data_offsets [0, 8] and [0, 8]"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"),
       "bytes 8 to 16 of the data belong to no tensor"},
      {"{}", "bytes 0 to 16 of the data belong to no tensor"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[8,4])"),
       "tensor 'q': data_offsets [8, 4] end before they begin"},
      {one(R"("dtype":"F32","shape":[3],"data_offsets":[0,16])"),
       "tensor 'q': shape [3] of F32 takes 12 bytes, data_offsets [0, 16] hold 16"},
      {one(R"("dtype":"F32","shape":[],"data_offsets":[0,16])"),
       "tensor 'q': shape [] of F32 takes 4 bytes, data_offsets [0, 16] hold 16"},
      {one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16])"),
       "tensor 'q': shape [4294967296, 4294967296] of F32 is more than 2^63 - 1 bytes"},
      {one(R"("dtype":"U8","shape":[4294967296,0,4294967296],"data_offsets":[0,0])"),
       "tensor 'q': shape [4294967296, 0, 4294967296] of U8 is more than 2^63 - 1 bytes"},
      {one(R"("dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807])"),
       "tensor 'q': data_offsets [0, 9223372036854775807] end past the 16 bytes of data: wrong, or "
       "the file is truncated"},
  };
  for (const HeaderCase& c : cases) {
    const std::string bytes = file_bytes(c.header, 16);
    if (c.message.empty()) {
      EXPECT_TRUE(parse(bytes).is_ok()) << c.header;
    } else {
      EXPECT_EQ(message_of(bytes), "f: " + c.message) << c.header;
    }
  }
}

TEST(Safetensors, RefusesEveryPrefixOfAFile) {
  const std::string whole =
      file_bytes(R"({"q":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24);
  ASSERT_TRUE(parse(whole).is_ok());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(message_of(std::string_view(whole).substr(0, size)).empty()) << size;
  }
}

TEST(SafetensorsWriter, WritesWhatIsRead) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("out.safetensors");
  const std::vector<std::byte> data = counting_bytes(64);
  const std::span<const std::byte> bytes(data);
  const std::vector<TensorView> tensors{
      {"narrow", FileDType::kU8, {3}, bytes.first(3)},
      {"wide", FileDType::kF64, {2, 1}, bytes.subspan(3, 16)},
      {"empty", FileDType::kF32, {4, 0}, {}},
      {"scalar", FileDType::kBF16, {}, bytes.subspan(20, 2)},
      {"quote \" and \n \xc3\xb6", FileDType::kF16, {3}, bytes.subspan(30, 6)},
  };
  const SafetensorsMetadata metadata{{"layout", "bshd"}, {"note", "a \"b\"\n"}};
  const Status written = write_safetensors(path, tensors, metadata);
  ASSERT_TRUE(written) << written.message();

  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.status().message();
  EXPECT_EQ(file->metadata(), metadata);
  ASSERT_EQ(file->tensors().size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& got = file->tensors()[i];
    EXPECT_EQ(got.name, tensors[i].name);
    EXPECT_EQ(got.dtype, tensors[i].dtype);
    EXPECT_EQ(got.shape, tensors[i].shape);
    EXPECT_TRUE(std::ranges::equal(got.data, tensors[i].data)) << got.name;
    EXPECT_TRUE(got.is_aligned()) << got.name;
  }
  EXPECT_EQ(directory.num_entries(), 1u);
}

TEST(SafetensorsWriter, PadsTheHeaderToEightBytes) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("out.safetensors");
  for (std::size_t extra = 0; extra < 9; ++extra) {
    const std::vector<std::byte> data = counting_bytes(8);
    const std::vector<TensorView> tensors{
        {"q" + std::string(extra, 'x'), FileDType::kF64, {1}, data}};
    ASSERT_TRUE(write_safetensors(path, tensors, {}).is_ok());
    const std::string bytes = directory.read("out.safetensors");
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
    EXPECT_EQ(header_bytes % 8, 0u);
    EXPECT_EQ(bytes[8], '{');
    EXPECT_EQ(bytes.size(), 8 + header_bytes + 8);
  }
}

TEST(SafetensorsWriter, WritesAFileWithoutTensors) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("out.safetensors");
  ASSERT_TRUE(write_safetensors(path, {}, {{"a", "b"}}).is_ok());
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.status().message();
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_EQ(file->metadata().at("a"), "b");
}

TEST(SafetensorsWriter, RefusesWhatTheFormatCanNotHold) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("out");
  const std::vector<std::byte> data = counting_bytes(16);
  const TensorView good{"q", FileDType::kF32, {4}, data};
  const auto message = [&](const std::vector<TensorView>& tensors,
                           const SafetensorsMetadata& metadata = {}) {
    const Status status = write_safetensors(path, tensors, metadata);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(message({good, good}), path + ": tensor 'q': its name is taken");
  EXPECT_EQ(message({{"__metadata__", FileDType::kF32, {4}, data}}),
            path + ": tensor '__metadata__': its name is taken");
  EXPECT_EQ(message({{"\xff", FileDType::kF32, {4}, data}}),
            path + ": tensor '\\xff': its name is not UTF-8");
  EXPECT_EQ(message({{"q", FileDType::kF32, {-4}, data}}),
            path + ": tensor 'q': shape [-4]: dimensions must be from 0, their bytes below 2^63");
  EXPECT_EQ(message({{"q", FileDType::kF32, {std::int64_t{1} << 61}, data}}),
            path +
                ": tensor 'q': shape [2305843009213693952]: dimensions must be from 0, their "
                "bytes below 2^63");
  EXPECT_EQ(message({{"q", FileDType::kF32, {5}, data}}),
            path + ": tensor 'q': shape [5] of F32 takes 20 bytes, got 16");
  EXPECT_EQ(message({good}, {{"a", "\xff"}}), path + ": metadata 'a': its value is not UTF-8");
  EXPECT_EQ(message({good}, {{"\xff", "a"}}), path + ": metadata '\\xff': it is not UTF-8");
  EXPECT_EQ(directory.num_entries(), 0u);
}

TEST(SafetensorsWriterSlow, RefusesAHeaderPastTheLimit) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("out");
  EXPECT_EQ(write_safetensors(path, {}, {{"a", std::string(100'000'000, 'x')}}).message(),
            path +
                ": header size 100000032: the safetensors format allows at most 100000000 "
                "bytes");
  EXPECT_EQ(directory.num_entries(), 0u);
}

TEST(SafetensorsWriter, LeavesNothingWhereItCanNotWrite) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("absent/out");
  EXPECT_EQ(write_safetensors(path, {}, {}).message(),
            path + ": can't be written: directory " + directory.file("absent") + " does not exist");
  EXPECT_EQ(directory.num_entries(), 0u);
}

TEST(SafetensorsFile, NamesTheFileInEachMessage) {
  const TemporaryDirectory directory;
  const std::string missing = directory.file("absent.safetensors");
  EXPECT_EQ(SafetensorsFile::open(missing).status().message(),
            missing + ": can't be opened: No such file or directory");
  const std::string text = directory.write("text.safetensors", "hello there");
  EXPECT_EQ(SafetensorsFile::open(text).status().message(),
            text +
                ": header size 7526676540175443304: the safetensors format allows at most "
                "100000000 bytes");
}

TEST(SafetensorsFile, KeepsItsViewsWhenMoved) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("out.safetensors");
  const std::vector<std::byte> data = counting_bytes(16);
  const std::vector<TensorView> tensors{{"q", FileDType::kF32, {4}, data}};
  ASSERT_TRUE(write_safetensors(path, tensors, {}).is_ok());
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.status().message();
  const std::vector<SafetensorsFile> moved = [&] {
    std::vector<SafetensorsFile> files;
    files.push_back(*std::move(file));
    return files;
  }();
  EXPECT_TRUE(std::ranges::equal(moved[0].find("q")->data, data));
}

struct KnownTensor {
  std::string file;
  std::string name;
  FileDType dtype;
  std::vector<std::int64_t> shape;
  std::string layout;
};

std::filesystem::path example_data() {
  return std::filesystem::path(test::source_directory()) / "examples" / "data";
}

/// Files that another program wrote.
TEST(SafetensorsFile, ReadsTheShippedInputs) {
  const std::vector<KnownTensor> tensors{
      {"minilm-packed-layer0", "q", FileDType::kF32, {532, 4, 32}, "thd"},
      {"minilm-packed-layer5", "cu_seqlens_k", FileDType::kI32, {25}, "thd"},
      {"smollm2-causal-layer18", "q", FileDType::kF16, {521, 9, 64}, "thd"},
      {"smollm2-paged-decode-layer18", "block_table", FileDType::kI32, {4, 9}, "bshd"},
  };
  for (const KnownTensor& known : tensors) {
    const auto file = SafetensorsFile::open(example_data() / (known.file + ".safetensors"));
    ASSERT_TRUE(file) << file.status().message();
    EXPECT_EQ(file->metadata().at("layout"), known.layout) << known.file;
    const TensorView* tensor = file->find(known.name);
    ASSERT_NE(tensor, nullptr) << known.file;
    EXPECT_EQ(tensor->dtype, known.dtype) << known.file;
    EXPECT_EQ(tensor->shape, known.shape) << known.file;
  }
}

TEST(SafetensorsFile, WritesTheShippedInputsAgain) {
  const TemporaryDirectory directory;
  std::size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(example_data())) {
    if (entry.path().extension() != ".safetensors") continue;
    ++num_files;
    const auto file = SafetensorsFile::open(entry.path());
    ASSERT_TRUE(file) << file.status().message();
    const std::string copy = directory.file(entry.path().filename().string());
    ASSERT_TRUE(write_safetensors(copy, file->tensors(), file->metadata()).is_ok());
    const auto again = SafetensorsFile::open(copy);
    ASSERT_TRUE(again) << again.status().message();
    EXPECT_EQ(again->metadata(), file->metadata()) << copy;
    EXPECT_EQ(again->tensors().size(), file->tensors().size()) << copy;
    for (const TensorView& tensor : file->tensors()) {
      const TensorView* found = again->find(tensor.name);
      ASSERT_NE(found, nullptr) << copy << tensor.name;
      EXPECT_EQ(found->shape, tensor.shape) << copy << tensor.name;
      EXPECT_TRUE(std::ranges::equal(found->data, tensor.data)) << copy << tensor.name;
    }
  }
  EXPECT_GE(num_files, 4u);
}

}  // namespace
}  // namespace foveal::tools
