"""The dropout mask of docs/numerics.md, written a second time, over whole arrays: Philox4x32-10
(Salmon et al. 2011) in NumPy."""

import numpy as np

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox4x32(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Ten rounds on every counter; uint64 arrays [..., 4] that hold 32-bit words."""
    c0, c1, c2, c3 = np.moveaxis(counter.astype(np.uint64), -1, 0)
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(0xD2511F53, c0)
        high1, low1 = _multiply(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint64(k0), low1, high0 ^ c3 ^ np.uint64(k1), low0
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1)


def _multiply(factor: int, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    product = np.uint64(factor) * words
    return product >> _SHIFT, product & _LOW


def keep_mask(dropout_p: float, seed: int, offset: int, b: int, nheads_q: int, seqlen_q: int,
              seqlen_k: int) -> np.ndarray:
    """[nheads_q, seqlen_q, seqlen_k]: which weights of sequence b stay."""
    blocks = -(-seqlen_k // 4)
    head, row, block = np.meshgrid(np.arange(nheads_q) + b * nheads_q, np.arange(seqlen_q),
                                   np.arange(blocks), indexing="ij")
    offset_word = np.full_like(block, offset & 0xFFFFFFFF)
    counter = np.stack([block, row, head, offset_word], axis=-1)
    key = (seed & 0xFFFFFFFF, (seed >> 32) ^ (offset >> 32))
    words = philox4x32(counter, key).reshape(nheads_q, seqlen_q, blocks * 4)[..., :seqlen_k]
    return words >= round(float(np.float32(dropout_p)) * 2**32)
