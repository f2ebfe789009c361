#include "cuda/portable/decode/direct_args.hpp"

#include <limits>
#include <numeric>

#include "cuda/portable/decode/config.hpp"

namespace foveal::cuda::decode {
namespace {

/// Elements of a 16-byte unit.
constexpr std::int64_t kUnit = 8;

/// A row's bytes are counted in 32 bits.
constexpr std::int64_t kMaxRowUnits = std::numeric_limits<std::uint32_t>::max() / 16;

bool fixed_or_seqused_k(const algorithm::SeqlenSource& lengths) {
  return lengths.cu_seqlens_q == nullptr && lengths.cu_seqlens_k == nullptr &&
         lengths.seqused_q == nullptr && lengths.leftpad_k == nullptr;
}

/// Whether the kernel has the features at all.
bool takes(const DecodeArgs& args, int headdim_tile, int tile_rows) {
  const AttentionArgs& attention = args.attention;
  const bool plain_scores =
      attention.score.softcap == 0.0f && attention.score.alibi_slopes == nullptr;
  const algorithm::KvLayout& layout = attention.k.layout;
  const bool whole_blocks = layout.block_table == nullptr || layout.page_size % kBlockKeys == 0;
  return args.num_splits <= kMaxDirectSplits && args.row_tiles == 1 && tile_rows == kTileRows &&
         headdim_tile <= kMaxDirectHeaddim && attention.headdim == headdim_tile &&
         attention.headdim_v == headdim_tile && args.vectorised && args.queries_vectorised &&
         plain_scores && whole_blocks && attention.cache_batch_idx == nullptr &&
         fixed_or_seqused_k(attention.lengths);
}

/// A stride in 16-byte units; that of an axis with one entry counts for nothing.
std::optional<std::uint32_t> units(std::int64_t stride, std::int64_t entries, std::int64_t most) {
  if (entries <= 1) return 0;
  if (stride < 0 || stride % kUnit != 0 || stride / kUnit > most) return std::nullopt;
  return static_cast<std::uint32_t>(stride / kUnit);
}

std::optional<DirectOperand> direct_operand(const KeyOperand& operand,
                                            const AttentionArgs& attention) {
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  const bool paged = operand.layout.block_table != nullptr;
  const auto batch =
      units(operand.layout.page_stride, paged ? operand.layout.num_pages : attention.batch, kMost);
  const auto head = units(operand.layout.head_stride, attention.nheads_k, kMost);
  const auto row = units(operand.layout.row_stride, attention.lengths.rows_k, kMaxRowUnits);
  if (!batch || !head || !row) return std::nullopt;
  return DirectOperand{operand.data, *batch, *head, *row};
}

/// Whether four elements of every row of a 16-bit `out` can be stored as 8 bytes.
bool stores_quads(const RowOperand& out) {
  const RowStrides& strides = out.strides;
  return strides.dim == 1 && reinterpret_cast<std::uintptr_t>(out.data) % 8 == 0 &&
         (strides.batch | strides.row | strides.head) % 4 == 0;
}

/// For either schedule.
std::optional<DirectArgs> make_args(const DecodeArgs& args, int headdim_tile, int tile_rows) {
  if (!takes(args, headdim_tile, tile_rows)) return std::nullopt;
  const AttentionArgs& attention = args.attention;
  const auto k = direct_operand(attention.k, attention);
  const auto v = direct_operand(attention.v, attention);
  if (!k || !v) return std::nullopt;
  const algorithm::SeqlenSource& lengths = attention.lengths;
  const algorithm::KvLayout& layout =
      attention.k.layout;  // The page table is the same for k and v.
  DirectArgs direct;
  direct.k = *k;
  direct.v = *v;
  direct.keys = args.sequence.keys;
  direct.splits = args.splits;
  direct.num_splits = args.num_splits;
  direct.split_blocks = args.split_blocks;
  direct.num_stages = args.num_stages;
  if (layout.block_table != nullptr) {
    direct.pages = {layout.block_table, layout.block_table_batch_stride,
                    layout.block_table_page_stride,
                    Divisor(static_cast<std::uint32_t>(layout.page_size)),
                    static_cast<std::int32_t>(min_of<std::int64_t>(
                        layout.num_pages, std::numeric_limits<std::int32_t>::max()))};
  }
  direct.seqused_k = lengths.seqused_k;
  direct.mask = {static_cast<std::int32_t>(lengths.rows_q),
                 static_cast<std::int32_t>(lengths.rows_k), args.window};
  direct.seqlen_new = static_cast<std::int32_t>(lengths.seqlen_new);
  direct.num_rows = static_cast<std::int32_t>(lengths.rows_q) * attention.qhead_per_khead;
  direct.qhead_per_khead = attention.qhead_per_khead;
  direct.group = args.group;
  direct.num_quads_a_block = ceil_div(headdim_tile / 4, args.num_splits);
  direct.quads_a_block = Divisor(static_cast<std::uint32_t>(direct.num_quads_a_block));
  direct.scale_log2 = attention.score.softmax_scale * kLog2E;
  direct.q = attention.q;
  direct.out = attention.out;
  direct.out_dtype = attention.out_dtype;
  direct.store_quads = attention.out_dtype != DType::kFloat32 && stores_quads(attention.out);
  direct.lse = attention.lse;
  direct.sinks = attention.sinks;
  direct.sink_stride = attention.sink_stride;
  return direct;
}

}  // namespace

std::optional<DirectArgs> make_direct_args(const DecodeArgs& args, int headdim_tile,
                                           int tile_rows) {
  if (args.schedule != Schedule::kClusters) return std::nullopt;
  return make_args(args, headdim_tile, tile_rows);
}

std::optional<SharedDirectArgs> make_shared_direct_args(const DecodeArgs& args, int headdim_tile,
                                                        int tile_rows, std::int64_t num_blocks) {
  if (args.schedule != Schedule::kBalanced || args.granules_apart ||
      args.attention.lengths.seqused_k == nullptr) {
    return std::nullopt;
  }
  const auto direct = make_args(args, headdim_tile, tile_rows);
  if (!direct) return std::nullopt;
  const std::int64_t heads = args.attention.nheads_k;
  const std::int64_t team_size = std::gcd(heads, num_blocks);
  const std::int64_t groups = heads / team_size;
  const std::int64_t most_parts = args.attention.batch * groups * args.max_splits;
  const std::int32_t granule_blocks = max_of(args.granule_blocks / kDirectGranules, 1);
  return SharedDirectArgs{
      .direct = *direct,
      .batch = args.attention.batch,
      .team_size = static_cast<std::int32_t>(team_size),
      .team = Divisor(static_cast<std::uint32_t>(team_size)),
      .head_groups = static_cast<std::int32_t>(groups),
      .max_teams = static_cast<std::int32_t>(min_of(num_blocks / team_size, most_parts)),
      .granule_blocks = granule_blocks,
      .task_granules = ceil_div(kDirectTaskBlocks, granule_blocks),
      .partials = args.partials,
      .flags = args.flags,
      .nonce = args.nonce};
}

}  // namespace foveal::cuda::decode
