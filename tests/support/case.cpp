#include "support/case.hpp"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <ostream>
#include <span>
#include <type_traits>
#include <utility>

namespace foveal::test {
namespace {

template <class Enum>
using Names = std::span<const std::pair<Enum, std::string_view>>;

constexpr std::pair<Pass, std::string_view> kPassNames[] = {{Pass::kForward, "forward"},
                                                            {Pass::kBackward, "backward"},
                                                            {Pass::kAppend, "append"},
                                                            {Pass::kMerge, "merge"}};
constexpr std::pair<DType, std::string_view> kDtypeNames[] = {
    {DType::kFloat16, "fp16"}, {DType::kBFloat16, "bf16"}, {DType::kFloat32, "fp32"}};
constexpr std::pair<QForm, std::string_view> kQFormNames[] = {{QForm::kDense, "dense"},
                                                              {QForm::kUsed, "used"},
                                                              {QForm::kPacked, "packed"},
                                                              {QForm::kPackedUsed, "packed_used"}};
constexpr std::pair<KForm, std::string_view> kKFormNames[] = {{KForm::kDense, "dense"},
                                                              {KForm::kCache, "cache"},
                                                              {KForm::kPacked, "packed"},
                                                              {KForm::kPackedUsed, "packed_used"},
                                                              {KForm::kPaged, "paged"}};
constexpr std::pair<Layout, std::string_view> kLayoutNames[] = {
    {Layout::kBshd, "bshd"},
    {Layout::kBhsd, "bhsd"},
    {Layout::kPackedSlice, "packed_slice"},
    {Layout::kDimOutermost, "dim_outermost"},
    {Layout::kExpandedHeads, "expanded_heads"},
    {Layout::kExpandedBatch, "expanded_batch"},
    {Layout::kExpandedAll, "expanded_all"},
    {Layout::kReversed, "reversed"},
    {Layout::kMisaligned, "misaligned"},
    {Layout::kPadded, "padded"},
    {Layout::kOddUnitStrides, "odd_unit_strides"}};
constexpr std::pair<BiasKind, std::string_view> kBiasNames[] = {{BiasKind::kNone, "none"},
                                                                {BiasKind::kSameDtype, "same"},
                                                                {BiasKind::kFloat32, "fp32"},
                                                                {BiasKind::kMask, "mask"}};
constexpr std::pair<AlibiKind, std::string_view> kAlibiNames[] = {
    {AlibiKind::kNone, "none"},
    {AlibiKind::kHeads, "heads"},
    {AlibiKind::kBatchHeads, "batch_heads"}};
constexpr std::pair<Rotary, std::string_view> kRotaryNames[] = {
    {Rotary::kNone, "none"}, {Rotary::kHalves, "halves"}, {Rotary::kInterleaved, "interleaved"}};
constexpr std::pair<Poison, std::string_view> kPoisonNames[] = {{Poison::kNan, "nan"},
                                                                {Poison::kInfinity, "inf"},
                                                                {Poison::kHuge, "huge"},
                                                                {Poison::kZero, "zero"}};

Names<Pass> names_of(Pass) { return kPassNames; }
Names<DType> names_of(DType) { return kDtypeNames; }
Names<QForm> names_of(QForm) { return kQFormNames; }
Names<KForm> names_of(KForm) { return kKFormNames; }
Names<Layout> names_of(Layout) { return kLayoutNames; }
Names<BiasKind> names_of(BiasKind) { return kBiasNames; }
Names<AlibiKind> names_of(AlibiKind) { return kAlibiNames; }
Names<Rotary> names_of(Rotary) { return kRotaryNames; }
Names<Poison> names_of(Poison) { return kPoisonNames; }

/// All fields but the pass, with their names in the line. Every other function here follows it.
template <class AnyCase, class Visitor>
void visit_fields(AnyCase& c, Visitor&& visit) {
  visit("kernel", c.kernel);
  visit("dtype", c.dtype);
  visit("fp32_out", c.fp32_out);
  visit("fp32_grads", c.fp32_grads);
  visit("lens", c.lens);
  visit("q", c.q_form);
  visit("k", c.k_form);
  visit("slack_q", c.slack_q);
  visit("slack_k", c.slack_k);
  visit("page", c.page_size);
  visit("leftpad", c.leftpad);
  visit("cache_batch_idx", c.cache_batch_idx);
  visit("loose_max_seqlen", c.loose_max_seqlen);
  visit("hk", c.nheads_k);
  visit("group", c.group);
  visit("d", c.headdim);
  visit("causal", c.causal);
  visit("left", c.window_left);
  visit("right", c.window_right);
  visit("scale", c.scale);
  visit("softcap", c.softcap);
  visit("sinks", c.sinks);
  visit("bias", c.bias);
  visit("bias_shape", c.bias_shape);
  visit("alibi", c.alibi);
  visit("dropout", c.dropout);
  visit("append", c.append);
  visit("rotary", c.rotary);
  visit("rotary_dim", c.rotary_dim);
  visit("rotary_fp32", c.rotary_fp32);
  visit("q_layout", c.q_layout);
  visit("kv_layout", c.kv_layout);
  visit("out_layout", c.out_layout);
  visit("lse", c.lse);
  visit("dlse", c.dlse);
  visit("dq", c.dq);
  visit("dk", c.dk);
  visit("dv", c.dv);
  visit("dbias", c.dbias);
  visit("dsinks", c.dsinks);
  visit("deterministic", c.deterministic);
  visit("batch_invariant", c.batch_invariant);
  visit("threads", c.num_threads);
  visit("poison", c.poison);
  visit("seed", c.seed);
}

template <class Value>
std::string value_text(const Value& value) {
  if constexpr (std::is_same_v<Value, std::string>) {
    return value;
  } else if constexpr (std::is_enum_v<Value>) {
    for (const auto& [name_value, name] : names_of(value)) {
      if (name_value == value) return std::string(name);
    }
    return "?";
  } else if constexpr (std::is_same_v<Value, std::vector<SeqLens>>) {
    std::string text;
    for (const SeqLens& lens : value) {
      if (!text.empty()) text += ',';
      text += std::to_string(lens.q) + '/' + std::to_string(lens.k);
    }
    return text;
  } else if constexpr (std::is_same_v<Value, float>) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.9g", static_cast<double>(value));
    return buffer;
  } else {
    return std::to_string(
        static_cast<std::conditional_t<std::is_same_v<Value, bool>, int, Value>>(value));
  }
}

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, number);
  return error == std::errc{} && last == end;
}

bool read_lens(std::string_view text, std::vector<SeqLens>& lens) {
  lens.clear();
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const std::size_t slash = item.find('/');
    SeqLens one;
    if (slash == std::string_view::npos || !read_number(item.substr(0, slash), one.q) ||
        !read_number(item.substr(slash + 1), one.k)) {
      return false;
    }
    lens.push_back(one);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return true;
}

template <class Value>
bool read_value(std::string_view text, Value& value) {
  if constexpr (std::is_same_v<Value, std::string>) {
    value = text;
    return true;
  } else if constexpr (std::is_enum_v<Value>) {
    for (const auto& [name_value, name] : names_of(value)) {
      if (name == text) {
        value = name_value;
        return true;
      }
    }
    return false;
  } else if constexpr (std::is_same_v<Value, std::vector<SeqLens>>) {
    return read_lens(text, value);
  } else if constexpr (std::is_same_v<Value, bool>) {
    value = text == "1";
    return text == "0" || text == "1";
  } else {
    return read_number(text, value);
  }
}

std::string_view next_word(std::string_view& line) {
  const std::size_t begin = line.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) {
    line = {};
    return {};
  }
  line.remove_prefix(begin);
  const std::size_t end = line.find_first_of(" \t\n");
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(word.size());
  return word;
}

bool read_field(std::string_view word, Case& c) {
  const std::size_t equals = word.find('=');
  if (equals == std::string_view::npos) return false;
  bool read = false;
  visit_fields(c, [&](std::string_view name, auto& value) {
    if (name == word.substr(0, equals)) read = read_value(word.substr(equals + 1), value);
  });
  return read;
}

}  // namespace

bool Case::sees(const SeqLens& one, std::int64_t i, std::int64_t j) const {
  const std::int64_t diagonal = i + one.k - one.q;
  if (j < 0 || j >= one.k || i < 0 || i >= one.q) return false;
  if (causal && j > diagonal) return false;
  if (window_left >= 0 && j < diagonal - window_left) return false;
  return window_right < 0 || j <= diagonal + window_right;
}

double Case::work() const {
  double pairs = 0;
  for (const SeqLens& one : lens) pairs += static_cast<double>(one.q) * static_cast<double>(one.k);
  return pairs * static_cast<double>(nheads_q() * headdim);
}

std::string to_line(const Case& c) {
  static const Case defaults;
  std::string line = value_text(c.pass);
  std::vector<std::string> default_texts;
  visit_fields(defaults, [&](std::string_view, const auto& value) {
    default_texts.push_back(value_text(value));
  });
  std::size_t field = 0;
  visit_fields(c, [&](std::string_view name, const auto& value) {
    std::string text = value_text(value);
    if (text != default_texts[field++] || name == "lens") {
      line.append(" ").append(name).append("=").append(text);
    }
  });
  return line;
}

std::optional<Case> parse_case(std::string_view line, std::string& error) {
  Case c;
  const std::string_view pass = next_word(line);
  if (!read_value(pass, c.pass)) {
    error = "a case begins with forward, backward, append or merge, not with '" +
            std::string(pass) + "'";
    return std::nullopt;
  }
  for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
    if (!read_field(word, c)) {
      error = "'" + std::string(word) + "' is no field of a case";
      return std::nullopt;
    }
  }
  return c;
}

std::ostream& operator<<(std::ostream& stream, const Case& c) { return stream << to_line(c); }

}  // namespace foveal::test
