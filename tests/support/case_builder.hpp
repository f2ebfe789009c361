// How a BuiltCase is filled: poison first, then what the contract lets a kernel read.
#pragma once

#include <string_view>
#include <vector>

#include "support/built_case.hpp"
#include "support/operand_layout.hpp"
#include "support/random.hpp"

namespace foveal::test {

class CaseBuilder {
 public:
  explicit CaseBuilder(BuiltCase& built) : built_(built), c_(built.c) {}

  void build();

 private:
  /// Parts that draw from streams of their own.
  enum Part : std::uint64_t {
    kQ,
    kK,
    kV,
    kDout,
    kDlse,
    kBias,
    kSinks,
    kKNew,
    kVNew,
    kPages,
    kOutA,
    kOutB,
    kLseA,
    kLseB,
    kDropout
  };
  [[nodiscard]] Random random(Part part) const { return Random(derive_seed(c_.seed, part)); }

  [[nodiscard]] double poison() const;
  void poison_all(Operand& operand) const;

  [[nodiscard]] std::vector<std::int64_t> shape_q() const;
  [[nodiscard]] std::vector<std::int64_t> shape_k() const;
  [[nodiscard]] std::vector<std::int64_t> shape_lse() const;
  [[nodiscard]] std::int64_t total(std::int64_t Sequence::*rows) const;

  Operand& add(std::string_view name, const PlacedSpec& placed);
  Operand& add_plain(std::string_view name, DType dtype, const std::vector<std::int64_t>& shape,
                     bool padded = false);
  void add_integers(std::string_view name, const std::vector<std::int64_t>& values);
  /// value(sequence), one a sequence.
  template <class Function>
  void add_per_sequence(std::string_view name, Function&& value) {
    std::vector<std::int64_t> values;
    for (const Sequence& s : built_.sequences) values.push_back(value(s));
    add_integers(name, values);
  }

  void set_options();
  void add_lengths();
  /// Sequence b uses a row of the cache that is not b; two rows are nobody's.
  void add_cache_rows();
  /// Pages out of order, three of them unused; table entries past the used ones point anywhere.
  void add_pages();

  /// Whether some row of the sequence sees key j.
  [[nodiscard]] bool key_is_seen(const Sequence& s, std::int64_t j) const;
  void add_keys();
  /// Poison but for the rows in use.
  void fill_rows(std::string_view name, Part part);
  void add_queries();
  void add_appended();

  void add_score_operands();
  /// Numbers only where some row sees the key: what is masked reads no bias.
  void add_bias();
  /// A function of the place, so that a broadcast element has one value. Some rows of a mask are
  /// all false.
  [[nodiscard]] double bias_value(const Index& index) const;

  void add_outputs();
  /// By value or, for odd seeds, through pointers. The offset uses more than 32 bits.
  void set_dropout();
  void add_merge_operands();

  BuiltCase& built_;
  const Case& c_;
  std::int64_t num_pages_ = 0;
};

}  // namespace foveal::test
