// Which tile of keys a block takes next, and what it needs to know of it.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/shared_memory.cuh"
#include "cuda/ptx/opaque.cuh"

namespace foveal::cuda::hopper::bwd {

/// Which keys a ticket stands for, and of which head: entry.b is -1 for none.
struct KeyTile {
  cuda::bwd::TileEntry entry;
  int head;
  bool falling;
};
FOVEAL_DEVICE KeyTile find_key_tile(const GradientArgs& args, std::uint32_t ticket) {
  const KeyTilePlace place = key_tile_place(args.order, ticket);
  const cuda::bwd::TileEntry* entries = args.backward.keys.entries;
  if (entries == nullptr) {
    const int heads = args.backward.attention.nheads_k;
    return {{place.pair / heads, place.block}, place.pair % heads, place.falling};
  }
  if (place.block >= entries[0].b) return {{-1, 0}, 0, false};
  return {entries[1 + place.block], place.pair, place.falling};
}

/// Number of the tile of dq's sums of a tile of rows: as an int where registers are few.
template <class Integer>
FOVEAL_DEVICE Integer sums_tile(const GradientArgs& args, const BlockWork& work,
                                const RowTiles& rows) {
  return static_cast<Integer>(rows.head) * args.row_tiles + work.first_row_tile + rows.block;
}

/// A side of the window in 32 bits: beyond any length it is unbounded.
FOVEAL_DEVICE std::int32_t narrow(std::int64_t side) {
  return static_cast<std::int32_t>(
      min_of<std::int64_t>(side, algorithm::kUnboundedOf<std::int32_t>));
}

/// Where the tile's keys lie. In 32 bits, as the calling warp has few registers.
template <BackwardTile kTile>
FOVEAL_DEVICE void describe_tile(const cuda::bwd::BackwardArgs& backward, const KeyTile& at,
                                 BlockWork& work) {
  const auto lengths =
      algorithm::basic_seqlen_info<std::int32_t>(backward.attention.lengths, at.entry.b);
  cuda::bwd::HeldTile& tile = work.tile;
  tile.head = at.head;
  tile.sequence.b = at.entry.b;
  tile.sequence.q_begin = lengths.q_begin;
  tile.sequence.k_begin = lengths.k_begin + lengths.leftpad_k;
  tile.first = at.entry.block * kTile.n - lengths.leftpad_k;
  tile.stored = {-lengths.leftpad_k, lengths.capacity_k - lengths.leftpad_k};
  tile.used = {0, lengths.seqlen_k};
  tile.sequence.mask = {lengths.seqlen_q, lengths.seqlen_k, backward.attention.score.window};
  work.mask = {lengths.seqlen_q,
               lengths.seqlen_k,
               {narrow(backward.attention.score.window.left),
                narrow(backward.attention.score.window.right)}};
  work.turns = dq_turns(kTile, work.mask, lengths.leftpad_k, at.entry.block, at.falling);
}

/// False where no keys belong to the ticket.
template <class Shape>
FOVEAL_DEVICE bool describe_work(const GradientArgs& args, std::uint32_t ticket, BlockWork& work) {
  constexpr BackwardTile kTile = Shape::kTile;
  const cuda::bwd::BackwardArgs& backward = args.backward;
  const KeyTile key_tile = find_key_tile(args, ticket);
  work.tile.present = key_tile.entry.b >= 0;
  if (!work.tile.present) return false;
  describe_tile<kTile>(backward, key_tile, work);
  ptx::hold_memory();
  work.blocks = cuda::bwd::streamed_blocks<cuda::bwd::Side::kKeys, kTile.n, kTile.m>(work.tile);
  ptx::hold_memory();
  const auto rows = work.mask.rows_of_keys({0, work.mask.seqlen_k});
  work.rows = {rows.min, rows.max};
  const auto keys = work.mask.keys_of_rows({0, work.mask.seqlen_q});
  work.tile.readable = {keys.min, keys.max};
  work.count = work.blocks.visit.max - work.blocks.visit.min;
  work.by_rows = args.order.by_rows;
  if (args.order.by_rows || args.turns != nullptr) {
    work.row_step = key_tile.falling ? 1 : -1;
    work.start = key_tile.falling ? 0 : work.count - 1;
  } else {
    work.row_step = 1;
    // Neighbours begin at rows of their own, if there are enough, not to add to the same.
    const int diagonal = work.tile.first / kTile.m - work.blocks.visit.min;
    work.start = work.count > 0 ? max_of(diagonal, 0) % work.count : 0;
  }
  work.heads = backward.attention.qhead_per_khead;
  work.steps = work.count * work.heads;
  work.first_head = work.tile.head * work.heads;
  const int b = work.tile.sequence.b;
  const bool packed = backward.attention.lengths.cu_seqlens_q != nullptr;
  work.first_row_tile =
      packed ? packed_row_tile(kTile, work.tile.sequence.q_begin, b) : b * args.row_blocks;
  return true;
}

/// The next tile of keys: false where there are no more. One thread calls it.
template <class Shape>
FOVEAL_DEVICE bool take_work(const GradientArgs& args, BlockWork& work) {
  auto* tickets = reinterpret_cast<unsigned long long*>(args.tickets);
#pragma unroll 1
  for (;;) {
    const auto ticket = static_cast<std::uint32_t>(atomicAdd(tickets, 1ull));
    if (ticket >= static_cast<std::uint32_t>(args.key_tiles)) return false;
    if (describe_work<Shape>(args, ticket, work)) return true;
  }
}

}  // namespace foveal::cuda::hopper::bwd
