// lse = log(exp(lse_a) + exp(lse_b));  out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b
#include "reference/merge.hpp"

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "reference/append.hpp"
#include "reference/scores.hpp"

namespace foveal::reference {
namespace {

constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

/// log(exp(a) + exp(b)); a part of -inf adds nothing.
double log_add_exp(double a, double b) {
  if (a == kNegativeInfinity) return b;
  if (b == kNegativeInfinity) return a;
  const double larger = a > b ? a : b;
  return larger + std::log(std::exp(a - larger) + std::exp(b - larger));
}

}  // namespace

void merge(const Inputs& inputs, OracleResult& result) {
  const OperandReader& out = inputs.out;
  const int axis = out.rank() - 3;  // of the rows
  const std::int64_t batch = axis == 0 ? 1 : out.extent(0);
  const std::int64_t num_rows = out.extent(axis);
  const std::int64_t nheads = out.extent(axis + 1);
  const std::int64_t dim = out.extent(axis + 2);
  result.out.resize(static_cast<std::size_t>(out.numel()));
  if (inputs.lse.present()) result.lse.resize(static_cast<std::size_t>(inputs.lse.numel()));

  std::vector<double> part(static_cast<std::size_t>(dim));
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t row = 0; row < num_rows; ++row) {
      for (std::int64_t h = 0; h < nheads; ++h) {
        const double lse_a = inputs.lse_a.at_row(b, h, row);
        const double lse_b = inputs.lse_b.at_row(b, h, row);
        const double lse = log_add_exp(lse_a, lse_b);
        if (!result.lse.empty()) {
          result.lse[static_cast<std::size_t>((b * nheads + h) * num_rows + row)] = lse;
        }
        const std::span<double> merged =
            slice(result.out, ((b * num_rows + row) * nheads + h) * dim, dim);
        const auto add_part = [&](const OperandReader& out_part, double lse_part) {
          if (lse_part == kNegativeInfinity) return;  // its out may hold anything
          out_part.read_vector(b, row, h, part);
          add_scaled(merged, weight(lse_part, lse), part);
        };
        add_part(inputs.out_a, lse_a);
        add_part(inputs.out_b, lse_b);
      }
    }
  }
}

}  // namespace foveal::reference
