#include "tools/compute_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "tools/message_text.hpp"

namespace foveal::tools {
namespace {

using O = ComputeOptions;

constexpr const char* kGroup = "What is computed";

constexpr std::array<std::pair<std::string_view, TensorLayout>, 3> kLayouts{{
    {"bshd", TensorLayout::kBshd},
    {"bhsd", TensorLayout::kBhsd},
    {"thd", TensorLayout::kThd},
}};

/// Calls `visit(name, member, help)` for each option: the one list of them.
template <class Visitor>
void for_each_option(const Visitor& visit) {
  visit("layout", &O::layout,
        "Order of dimensions: bshd, bhsd or thd (packed); without it thd where q has 3, else bshd");
  visit("causal", &O::causal, "Row i sees keys j <= i + seqlen_k - seqlen_q");
  visit("softmax_scale", &O::softmax_scale, "Factor of q.k; without it 1 / sqrt(headdim)");
  visit("softcap", &O::softcap, "Scores become softcap * tanh(score / softcap); 0 is off");
  visit("window_size_left", &O::window_size_left,
        "Keys that a row sees left of its diagonal; -1: all");
  visit("window_size_right", &O::window_size_right,
        "Keys that a row sees right of its diagonal; -1: all");
  visit("dropout_p", &O::dropout_p, "Probability to drop a weight, 0 to 1");
  visit("dropout_seed", &O::dropout_seed, "Seed of the dropout mask");
  visit("dropout_offset", &O::dropout_offset, "Offset of the dropout mask");
  visit("max_seqlen", &O::max_seqlen, "Upper bound of the packed lengths, for the plan");
  visit("rotary_interleaved", &O::rotary_interleaved,
        "Rotary pairs are (2i, 2i + 1), not (i, i + rotary_dim / 2)");
  visit("deterministic", &O::deterministic, "Every result bitwise equal from run to run");
  visit("batch_invariant", &O::batch_invariant,
        "The bits of a sequence's result don't depend on its batch");
}

/// The parse() functions take the whole text or nothing; `allowed` says what they take.
bool parse(std::string_view text, TensorLayout& value) {
  const auto* found = std::find_if(kLayouts.begin(), kLayouts.end(),
                                   [&](const auto& layout) { return layout.first == text; });
  if (found == kLayouts.end()) return false;
  value = found->second;
  return true;
}

/// Python's str(True) is a common way to fill metadata.
bool parse(std::string_view text, bool& value) {
  value = text == "1" || text == "true" || text == "True";
  return value || text == "0" || text == "false" || text == "False";
}

template <class Number>
bool parse(std::string_view text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped == end;
}

constexpr std::string_view allowed(TensorLayout) { return "bshd, bhsd or thd"; }
constexpr std::string_view allowed(bool) { return "0 or 1"; }
constexpr std::string_view allowed(float) { return "a number"; }
constexpr std::string_view allowed(std::int64_t) { return "a whole number"; }
constexpr std::string_view allowed(std::uint64_t) { return "a whole number from 0 to 2^64 - 1"; }

constexpr std::string_view type_name(TensorLayout) { return "NAME"; }
constexpr std::string_view type_name(float) { return "X"; }
constexpr std::string_view type_name(std::int64_t) { return "N"; }
constexpr std::string_view type_name(std::uint64_t) { return "N"; }

template <class T>
std::string refusal(std::string_view text) {
  return fmt::format("{}: must be {}", in_quotes(text), allowed(T{}));
}

std::string flag_of(std::string_view option) {
  std::string flag(option);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

void add_flag(CLI::App& command, const char* name, std::optional<bool>& value, const char* help) {
  const std::string flag = flag_of(name);
  command
      .add_flag_function(
          fmt::format("--{0},!--no-{0}", flag), [&value](std::int64_t count) { value = count > 0; },
          help)
      ->disable_flag_override()
      ->group(kGroup);
}

template <class T>
void add_flag(CLI::App& command, const char* name, std::optional<T>& value, const char* help) {
  const std::string flag = "--" + flag_of(name);
  command
      .add_option_function<std::string>(
          flag,
          [&value, flag](const std::string& text) {
            T parsed{};
            if (!parse(text, parsed)) throw CLI::ValidationError(flag, refusal<T>(text));
            value = parsed;
          },
          help)
      ->type_name(std::string(type_name(T{})))
      ->group(kGroup);
}

void add_window_flag(CLI::App& command, ComputeOptions& options) {
  const auto set = [&options](const std::string& text) {
    const std::size_t comma = text.find(',');
    std::int64_t left = 0;
    std::int64_t right = 0;
    const bool both = comma != std::string::npos && parse(text.substr(0, comma), left) &&
                      parse(text.substr(comma + 1), right);
    if (!both) {
      throw CLI::ValidationError("--window",
                                 in_quotes(text) + ": must be two whole numbers, LEFT,RIGHT");
    }
    options.window_size_left = left;
    options.window_size_right = right;
  };
  command.add_option_function<std::string>("--window", set, "Both sides at once, as in 127,0")
      ->type_name("LEFT,RIGHT")
      ->group(kGroup);
}

}  // namespace

std::string_view tensor_layout_name(TensorLayout layout) {
  return kLayouts[static_cast<std::size_t>(layout)].first;
}

Result<ComputeOptions> options_from_metadata(const SafetensorsMetadata& metadata,
                                             const std::string& source) {
  ComputeOptions options;
  Status status;
  for_each_option([&]<class T>(const char* name, std::optional<T> O::*member, const char*) {
    const auto found = metadata.find(name);
    if (found == metadata.end()) return;
    T value{};
    if (parse(std::string_view(found->second), value)) {
      options.*member = value;
    } else if (status.is_ok()) {
      status = Status::invalid_argument(
          fmt::format("{}: metadata {} {}", source, name, refusal<T>(found->second)));
    }
  });
  if (!status) return status;
  return options;
}

void add_compute_flags(CLI::App& command, ComputeOptions& options) {
  for_each_option([&]<class T>(const char* name, std::optional<T> O::*member, const char* help) {
    add_flag(command, name, options.*member, help);
  });
  add_window_flag(command, options);
}

ComputeOptions overlay(const ComputeOptions& flags, const ComputeOptions& metadata) {
  ComputeOptions options = metadata;
  for_each_option([&]<class T>(const char*, std::optional<T> O::*member, const char*) {
    if (flags.*member) options.*member = flags.*member;
  });
  return options;
}

void apply_options(const ComputeOptions& options, AttentionProblem& problem,
                   AttentionTensors& tensors) {
  problem.causal = options.causal.value_or(problem.causal);
  problem.softmax_scale = options.softmax_scale;
  problem.softcap = options.softcap.value_or(problem.softcap);
  problem.window_size_left = options.window_size_left.value_or(problem.window_size_left);
  problem.window_size_right = options.window_size_right.value_or(problem.window_size_right);
  problem.dropout_p = options.dropout_p.value_or(problem.dropout_p);
  problem.rotary_interleaved = options.rotary_interleaved.value_or(problem.rotary_interleaved);
  problem.deterministic = options.deterministic.value_or(problem.deterministic);
  problem.batch_invariant = options.batch_invariant.value_or(problem.batch_invariant);
  if (problem.q.rank == 3) problem.max_seqlen_q = options.max_seqlen.value_or(0);
  if (problem.k.rank == 3) problem.max_seqlen_k = options.max_seqlen.value_or(0);
  tensors.dropout_seed = options.dropout_seed.value_or(0);
  tensors.dropout_offset = options.dropout_offset.value_or(0);
}

}  // namespace foveal::tools
