#include "support/covering_array.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "support/random.hpp"

namespace foveal::test {
namespace {

constexpr int kCandidates = 6;
constexpr std::size_t kUnset = static_cast<std::size_t>(-1);

class Design {
 public:
  Design(const std::vector<std::size_t>& num_levels, const LevelsMeet& meet, std::uint64_t seed)
      : num_levels_(num_levels), random_(seed) {
    for (const std::size_t levels : num_levels) {
      first_.push_back(total_);
      total_ += levels;
    }
    allowed_.assign(total_ * total_, 0);
    open_.assign(total_ * total_, 0);
    for (std::size_t fa = 0; fa < num_levels.size(); ++fa) {
      for (std::size_t fb = fa + 1; fb < num_levels.size(); ++fb) mark_pairs(fa, fb, meet);
    }
  }

  std::vector<DesignRow> rows() {
    std::vector<DesignRow> result;
    for (std::size_t a = 0; a < total_; ++a) {
      for (std::size_t b = a + 1; b < total_; ++b) {
        while (open_[a * total_ + b] != 0) {
          const std::optional<DesignRow> row = best_row(a, b);
          if (!row) {
            close(a, b);  // fits into no row
            break;
          }
          cover(*row);
          result.push_back(*row);
        }
      }
    }
    return result;
  }

 private:
  void mark_pairs(std::size_t fa, std::size_t fb, const LevelsMeet& meet) {
    for (std::size_t a = 0; a < num_levels_[fa]; ++a) {
      for (std::size_t b = 0; b < num_levels_[fb]; ++b) {
        if (!meet(fa, a, fb, b)) continue;
        const std::size_t x = first_[fa] + a;
        const std::size_t y = first_[fb] + b;
        allowed_[x * total_ + y] = allowed_[y * total_ + x] = 1;
        open_[x * total_ + y] = open_[y * total_ + x] = 1;
      }
    }
  }

  void close(std::size_t a, std::size_t b) { open_[a * total_ + b] = open_[b * total_ + a] = 0; }

  [[nodiscard]] std::size_t factor_of(std::size_t level) const {
    std::size_t factor = 0;
    while (factor + 1 < first_.size() && first_[factor + 1] <= level) ++factor;
    return factor;
  }

  /// Open pairs that `level` would cover, or kUnset where it may not meet one of the row's.
  [[nodiscard]] std::size_t gain(std::size_t level, const DesignRow& row) const {
    std::size_t covered = 0;
    for (const std::size_t other : row) {
      if (other == kUnset) continue;
      if (allowed_[level * total_ + other] == 0) return kUnset;
      covered += static_cast<std::size_t>(open_[level * total_ + other]);
    }
    return covered;
  }

  /// A row with levels a and b, as indices over all factors; its gain in `total_gain`.
  std::optional<DesignRow> make_row(std::size_t a, std::size_t b, std::size_t& total_gain) {
    DesignRow row(num_levels_.size(), kUnset);
    row[factor_of(a)] = a;
    row[factor_of(b)] = b;
    total_gain = 1;
    std::vector<std::size_t> order(row.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[random_.bits() % i]);
    }
    for (const std::size_t factor : order) {
      if (row[factor] != kUnset) continue;
      std::size_t best = kUnset;
      std::size_t best_gain = 0;
      const std::size_t start = random_.bits() % num_levels_[factor];  // ties fall anywhere
      for (std::size_t step = 0; step < num_levels_[factor]; ++step) {
        const std::size_t level = first_[factor] + (start + step) % num_levels_[factor];
        const std::size_t level_gain = gain(level, row);
        if (level_gain != kUnset && (best == kUnset || level_gain > best_gain)) {
          best = level;
          best_gain = level_gain;
        }
      }
      if (best == kUnset) return std::nullopt;
      row[factor] = best;
      total_gain += best_gain;
    }
    return row;
  }

  std::optional<DesignRow> best_row(std::size_t a, std::size_t b) {
    std::optional<DesignRow> best;
    std::size_t best_gain = 0;
    for (int candidate = 0; candidate < kCandidates; ++candidate) {
      std::size_t row_gain = 0;
      std::optional<DesignRow> row = make_row(a, b, row_gain);
      if (row && (!best || row_gain > best_gain)) {
        best = std::move(row);
        best_gain = row_gain;
      }
    }
    if (best) {
      for (std::size_t factor = 0; factor < best->size(); ++factor) {
        (*best)[factor] -= first_[factor];
      }
    }
    return best;
  }

  void cover(const DesignRow& row) {
    for (std::size_t fa = 0; fa < row.size(); ++fa) {
      for (std::size_t fb = fa + 1; fb < row.size(); ++fb) {
        close(first_[fa] + row[fa], first_[fb] + row[fb]);
      }
    }
  }

  std::vector<std::size_t> num_levels_;
  std::vector<std::size_t> first_;  // index of each factor's level 0 among all levels
  std::size_t total_ = 0;
  std::vector<std::uint8_t> allowed_;  // [level, level]
  std::vector<std::uint8_t> open_;     // pairs that no row has yet
  Random random_;
};

}  // namespace

std::vector<DesignRow> covering_array(const std::vector<std::size_t>& num_levels,
                                      const LevelsMeet& meet, std::uint64_t seed) {
  return Design(num_levels, meet, seed).rows();
}

}  // namespace foveal::test
