// The same documents laid out in every form that the contract has give what a second, plainer
// implementation gives: whole score matrices, one document at a time.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "algorithm/dropout.hpp"
#include "unit/reference_case.hpp"

namespace foveal::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr std::int64_t kHeadsQ = 4;
constexpr std::int64_t kHeadsK = 2;
constexpr std::int64_t kHeaddim = 9;
constexpr std::int64_t kHeaddimV = 3;

struct Document {
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t leftpad = 0;
  std::vector<double> q, k, v;  ///< [seqlen, heads, dim]
};

std::vector<double> normals(Random& random, std::int64_t count) {
  const Fill fill = normal(random);
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(fill({}));
  return values;
}

std::vector<Document> make_documents(bool with_leftpad) {
  Random random(5);
  std::vector<Document> documents;
  const std::array<std::array<std::int64_t, 3>, 5> lengths{
      {{3, 5, 2}, {0, 2, 1}, {4, 4, 0}, {2, 0, 3}, {5, 3, 1}}};
  for (const auto& [seqlen_q, seqlen_k, leftpad] : lengths) {
    documents.push_back({.seqlen_q = seqlen_q,
                         .seqlen_k = seqlen_k,
                         .leftpad = with_leftpad ? leftpad : 0,
                         .q = normals(random, seqlen_q * kHeadsQ * kHeaddim),
                         .k = normals(random, seqlen_k * kHeadsK * kHeaddim),
                         .v = normals(random, seqlen_k * kHeadsK * kHeaddimV)});
  }
  return documents;
}

/// All options on; the sink of head h is h / 2 - 1, the slope h / 8.
void set_options(OracleCase& test) {
  test.problem.causal = true;
  test.problem.window_size_left = 2;
  test.problem.softcap = 4.0f;
  test.problem.softmax_scale = 0.5f;
  test.problem.dropout_p = 0.25f;
  test.tensors.dropout_seed = 99;
  test.add("sinks", {kHeadsQ},
           [](const Element& e) { return static_cast<double>(e.flat) / 2 - 1; });
  test.add("alibi_slopes", {kHeadsQ},
           [](const Element& e) { return static_cast<double>(e.flat) / 8; });
}

struct PlainRow {
  std::vector<double> out;
  double lse;
};

/// Row i of head h of one document with set_options(), by whole sums over the keys.
PlainRow plain_row(const Document& document, std::int64_t b, std::int64_t h, std::int64_t i) {
  const algorithm::Dropout dropout = algorithm::make_dropout(0.25f, 99, 0);
  const auto head_k = h / (kHeadsQ / kHeadsK);
  const double sink = static_cast<double>(h) / 2 - 1;
  double sum = std::exp(sink);
  std::vector<double> weighted(kHeaddimV, 0.0);
  for (std::int64_t j = 0; j < document.seqlen_k; ++j) {
    const std::int64_t behind = i + document.seqlen_k - document.seqlen_q - j;
    if (behind < 0 || behind > 2) continue;
    double score = 0;
    for (std::int64_t d = 0; d < kHeaddim; ++d) {
      score += document.q[static_cast<std::size_t>((i * kHeadsQ + h) * kHeaddim + d)] *
               document.k[static_cast<std::size_t>((j * kHeadsK + head_k) * kHeaddim + d)];
    }
    score = 4 * std::tanh(0.5 * score / 4) - static_cast<double>(h * behind) / 8;
    sum += std::exp(score);
    if (!algorithm::dropout_keeps(dropout, b * kHeadsQ + h, i, j)) continue;
    for (std::int64_t d = 0; d < kHeaddimV; ++d) {
      weighted[static_cast<std::size_t>(d)] +=
          std::exp(score) / 0.75 *
          document.v[static_cast<std::size_t>((j * kHeadsK + head_k) * kHeaddimV + d)];
    }
  }
  for (double& value : weighted) value /= sum;
  return {weighted, std::log(sum)};
}

enum class QForm { kDense, kPacked, kPackedUsed };
enum class KForm { kDense, kPacked, kPackedUsed, kCacheRows, kPages1, kPages3, kPages16 };

constexpr std::int64_t kCapacityQ = 6;
constexpr std::int64_t kCapacityK = 9;
constexpr std::int64_t kSpareRows = 2;  // of each document in the forms with unused rows
constexpr std::array<std::int32_t, 5> kCacheRows{4, 0, 6, 1, 3};

/// A token of a document; absent where memory holds nothing in use.
struct Token {
  std::size_t document;
  std::int64_t index;
};

/// First rows of packed documents of these lengths, and the total.
std::vector<std::int32_t> cumulative(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int32_t> sums{0};
  for (const std::int64_t length : lengths) {
    sums.push_back(sums.back() + static_cast<std::int32_t>(length));
  }
  return sums;
}

Token packed_token(const std::vector<std::int32_t>& cu_seqlens, std::int64_t row) {
  std::size_t document = 0;
  while (row >= cu_seqlens[document + 1]) ++document;
  return {document, row - cu_seqlens[document]};
}

class LayoutCase {
 public:
  LayoutCase(std::vector<Document> documents, QForm q_form, KForm k_form, DType dtype)
      : documents_(std::move(documents)), q_form_(q_form), dtype_(dtype) {
    add_queries();
    if (k_form == KForm::kPages1) add_pages(1);
    if (k_form == KForm::kPages3) add_pages(3);
    if (k_form == KForm::kPages16) add_pages(16);
    if (k_form == KForm::kPacked || k_form == KForm::kPackedUsed) {
      add_packed_keys(k_form == KForm::kPackedUsed);
    }
    if (k_form == KForm::kDense) add_dense_keys({});
    if (k_form == KForm::kCacheRows) add_dense_keys({kCacheRows.begin(), kCacheRows.end()});
    std::vector<std::int32_t> leftpad;
    for (const Document& document : documents_) {
      leftpad.push_back(static_cast<std::int32_t>(document.leftpad));
    }
    test_.add_ints("leftpad_k", leftpad);
    set_options(test_);
  }

  OracleCase& test() { return test_; }

  /// Compares every row of the result; rows that are no document's hold 0 and -inf.
  void expect_result(const OracleResult& result) const {
    std::size_t rows = 0;
    for (std::size_t b = 0; b < documents_.size(); ++b) {
      const std::int64_t capacity = rows_q(documents_[b]);
      for (std::int64_t i = 0; i < capacity; ++i, ++rows) {
        for (std::int64_t h = 0; h < kHeadsQ; ++h) {
          expect_row(result, static_cast<std::int64_t>(rows), {b, i}, h);
        }
      }
    }
    EXPECT_EQ(result.out.size(), rows * kHeadsQ * kHeaddimV);
    EXPECT_EQ(result.lse.size(), rows * kHeadsQ);
  }

 private:
  [[nodiscard]] std::int64_t rows_q(const Document& document) const {
    if (q_form_ == QForm::kDense) return kCapacityQ;
    return document.seqlen_q + (q_form_ == QForm::kPackedUsed ? kSpareRows : 0);
  }

  void expect_row(const OracleResult& result, std::int64_t flat_row, Token token,
                  std::int64_t h) const {
    const Document& document = documents_[token.document];
    const auto b = static_cast<std::int64_t>(token.document);
    const bool used = token.index < document.seqlen_q;
    const PlainRow expected = used ? plain_row(document, b, h, token.index)
                                   : PlainRow{std::vector<double>(kHeaddimV, 0.0), -kInfinity};
    const auto total = static_cast<std::int64_t>(result.lse.size()) / kHeadsQ;
    const std::int64_t lse_index = q_form_ == QForm::kDense
                                       ? (b * kHeadsQ + h) * kCapacityQ + token.index
                                       : h * total + flat_row;
    const auto begin =
        result.out.begin() + static_cast<std::ptrdiff_t>((flat_row * kHeadsQ + h) * kHeaddimV);
    SCOPED_TRACE(testing::Message() << "document " << b << " row " << token.index << " head " << h);
    expect_values({begin, begin + kHeaddimV}, expected.out);
    expect_values({result.lse[static_cast<std::size_t>(lse_index)]}, {expected.lse});
  }

  [[nodiscard]] double value(const std::vector<double>& values, std::int64_t row,
                             std::int64_t heads, std::int64_t head, std::int64_t dim,
                             std::int64_t d) const {
    const std::int64_t index = (row * heads + head) * dim + d;
    return row < 0 || index >= static_cast<std::int64_t>(values.size())
               ? kNaN
               : values[static_cast<std::size_t>(index)];
  }

  void add_queries() {
    std::vector<std::int64_t> capacities;
    std::vector<std::int32_t> used;
    for (const Document& document : documents_) {
      capacities.push_back(rows_q(document));
      used.push_back(static_cast<std::int32_t>(document.seqlen_q));
    }
    const std::vector<std::int32_t> cu_seqlens = cumulative(capacities);
    if (q_form_ != QForm::kPacked) test_.add_ints("seqused_q", used);
    if (q_form_ == QForm::kDense) {
      const auto batch = static_cast<std::int64_t>(documents_.size());
      test_.add(
          "q", {batch, kCapacityQ, kHeadsQ, kHeaddim},
          [&](const Element& e) {
            const Document& document = documents_[static_cast<std::size_t>(e.index[0])];
            return value(document.q, e.index[1], kHeadsQ, e.index[2], kHeaddim, e.index[3]);
          },
          dtype_);
      test_.want("out", {batch, kCapacityQ, kHeadsQ, kHeaddimV});
      test_.want("lse", {batch, kHeadsQ, kCapacityQ});
      return;
    }
    test_.add_ints("cu_seqlens_q", cu_seqlens);
    test_.add(
        "q", {cu_seqlens.back(), kHeadsQ, kHeaddim},
        [&](const Element& e) {
          const Token token = packed_token(cu_seqlens, e.index[0]);
          return value(documents_[token.document].q, token.index, kHeadsQ, e.index[1], kHeaddim,
                       e.index[2]);
        },
        dtype_);
    test_.want("out", {cu_seqlens.back(), kHeadsQ, kHeaddimV});
    test_.want("lse", {kHeadsQ, cu_seqlens.back()});
  }

  /// k and v from a rule that says which token lies at (outer, row) of a rank-4 tensor, or at (row)
  /// of a packed one. Padding counts as part of a token's index.
  template <class Locate>
  void add_keys(const Shape& rows, Locate locate) {
    for (const bool is_k : {true, false}) {
      const std::int64_t dim = is_k ? kHeaddim : kHeaddimV;
      Shape shape = rows;
      shape.insert(shape.end(), {kHeadsK, dim});
      const std::size_t axis = rows.size();
      test_.add(
          is_k ? "k" : "v", shape,
          [&](const Element& e) {
            const std::optional<Token> token = locate(e.index);
            if (!token) return kNaN;
            const Document& document = documents_[token->document];
            return value(is_k ? document.k : document.v, token->index - document.leftpad, kHeadsK,
                         e.index[axis], dim, e.index[axis + 1]);
          },
          dtype_);
    }
  }

  void add_seqused_k() {
    std::vector<std::int32_t> used;
    for (const Document& document : documents_) {
      used.push_back(static_cast<std::int32_t>(document.leftpad + document.seqlen_k));
    }
    test_.add_ints("seqused_k", used);
  }

  void add_dense_keys(const std::vector<std::int32_t>& cache_rows) {
    add_seqused_k();
    if (!cache_rows.empty()) test_.add_ints("cache_batch_idx", cache_rows);
    const auto batch = static_cast<std::int64_t>(documents_.size());
    add_keys({cache_rows.empty() ? batch : 7, kCapacityK},
             [&](const auto& index) -> std::optional<Token> {
               for (std::int64_t b = 0; b < batch; ++b) {
                 const std::int64_t row =
                     cache_rows.empty() ? b : cache_rows[static_cast<std::size_t>(b)];
                 if (row == index[0]) return Token{static_cast<std::size_t>(b), index[1]};
               }
               return std::nullopt;
             });
  }

  void add_packed_keys(bool with_spare_rows) {
    std::vector<std::int64_t> capacities;
    for (const Document& document : documents_) {
      capacities.push_back(document.leftpad + document.seqlen_k +
                           (with_spare_rows ? kSpareRows : 0));
    }
    const std::vector<std::int32_t> cu_seqlens = cumulative(capacities);
    test_.add_ints("cu_seqlens_k", cu_seqlens);
    if (with_spare_rows) add_seqused_k();
    add_keys({cu_seqlens.back()}, [&](const auto& index) -> std::optional<Token> {
      return packed_token(cu_seqlens, index[0]);
    });
  }

  /// Pages in an order that no formula of the oracle could hit on; unused entries are wild.
  void add_pages(std::int64_t page_size) {
    add_seqused_k();
    const auto batch = static_cast<std::int64_t>(documents_.size());
    const std::int64_t max_pages = (kCapacityK + page_size - 1) / page_size;
    const std::int64_t num_pages = batch * max_pages + 3;
    std::vector<std::int32_t> table;
    std::vector<std::optional<Token>> first_token(static_cast<std::size_t>(num_pages));
    for (std::int64_t b = 0; b < batch; ++b) {
      const Document& document = documents_[static_cast<std::size_t>(b)];
      for (std::int64_t column = 0; column < max_pages; ++column) {
        const bool used = column * page_size < document.leftpad + document.seqlen_k &&
                          (column + 1) * page_size > document.leftpad;
        const std::int64_t page = num_pages - 1 - (column * batch + b);
        if (used)
          first_token[static_cast<std::size_t>(page)] = {static_cast<std::size_t>(b),
                                                         column * page_size};
        table.push_back(used ? static_cast<std::int32_t>(page) : (b % 2 == 0 ? -1 : 1000000));
      }
    }
    test_.add_ints("block_table", {batch, max_pages}, table);
    add_keys({num_pages, page_size}, [&](const auto& index) -> std::optional<Token> {
      std::optional<Token> token = first_token[static_cast<std::size_t>(index[0])];
      if (token) token->index += index[1];
      return token;
    });
  }

  std::vector<Document> documents_;
  QForm q_form_;
  DType dtype_;
  OracleCase test_;
};

TEST(ReferenceLayout, EveryFormGivesThePlainResult) {
  for (const bool with_leftpad : {false, true}) {
    for (const QForm q_form : {QForm::kDense, QForm::kPacked, QForm::kPackedUsed}) {
      for (const KForm k_form :
           {KForm::kDense, KForm::kPacked, KForm::kPackedUsed, KForm::kCacheRows, KForm::kPages1,
            KForm::kPages3, KForm::kPages16}) {
        for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
          LayoutCase layout(make_documents(with_leftpad), q_form, k_form, dtype);
          SCOPED_TRACE(to_string(layout.test().problem));
          layout.expect_result(layout.test().run());
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace foveal::test
