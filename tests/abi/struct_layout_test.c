/* The layout of every public struct and every public constant, pinned. A program compiled against
 * an older header depends on each number here: a struct grows at its end and nothing else changes.
 * Whoever adds a field adds a row and the new size; whoever finds that a row must change has broken
 * the ABI and needs a new SONAME. The numbers are those of a 64-bit machine. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <foveal/foveal.h>
#include <foveal/foveal_experimental.h>

typedef struct pinned {
  const char* what;
  size_t actual;
  size_t pinned;
} pinned;

#define SIZE(type, bytes) \
  { "sizeof(" #type ")", sizeof(type), bytes }
#define FIELD(type, field, offset) \
  { "offsetof(" #type ", " #field ")", offsetof(type, field), offset }
#define VALUE(name, value) \
  { #name, (size_t)(name), value }

static const pinned kPinned[] = {
    SIZE(foveal_attention, 360),
    FIELD(foveal_attention, struct_size, 0),
    FIELD(foveal_attention, pass, 8),
    FIELD(foveal_attention, causal, 12),
    FIELD(foveal_attention, rotary_interleaved, 16),
    FIELD(foveal_attention, deterministic, 20),
    FIELD(foveal_attention, batch_invariant, 24),
    FIELD(foveal_attention, has_softmax_scale, 28),
    FIELD(foveal_attention, softmax_scale, 32),
    FIELD(foveal_attention, softcap, 36),
    FIELD(foveal_attention, dropout_p, 40),
    FIELD(foveal_attention, has_window, 44),
    FIELD(foveal_attention, window_size_left, 48),
    FIELD(foveal_attention, window_size_right, 56),
    FIELD(foveal_attention, max_seqlen_q, 64),
    FIELD(foveal_attention, max_seqlen_k, 72),
    FIELD(foveal_attention, dropout_seed, 80),
    FIELD(foveal_attention, dropout_offset, 88),
    FIELD(foveal_attention, dropout_seed_ptr, 96),
    FIELD(foveal_attention, dropout_offset_ptr, 104),
    FIELD(foveal_attention, q, 112),
    FIELD(foveal_attention, k, 120),
    FIELD(foveal_attention, v, 128),
    FIELD(foveal_attention, out, 136),
    FIELD(foveal_attention, lse, 144),
    FIELD(foveal_attention, dout, 152),
    FIELD(foveal_attention, dlse, 160),
    FIELD(foveal_attention, dq, 168),
    FIELD(foveal_attention, dk, 176),
    FIELD(foveal_attention, dv, 184),
    FIELD(foveal_attention, bias, 192),
    FIELD(foveal_attention, dbias, 200),
    FIELD(foveal_attention, sinks, 208),
    FIELD(foveal_attention, dsinks, 216),
    FIELD(foveal_attention, alibi_slopes, 224),
    FIELD(foveal_attention, cu_seqlens_q, 232),
    FIELD(foveal_attention, cu_seqlens_k, 240),
    FIELD(foveal_attention, seqused_q, 248),
    FIELD(foveal_attention, seqused_k, 256),
    FIELD(foveal_attention, leftpad_k, 264),
    FIELD(foveal_attention, block_table, 272),
    FIELD(foveal_attention, cache_batch_idx, 280),
    FIELD(foveal_attention, k_new, 288),
    FIELD(foveal_attention, v_new, 296),
    FIELD(foveal_attention, rotary_cos, 304),
    FIELD(foveal_attention, rotary_sin, 312),
    FIELD(foveal_attention, q_rotated, 320),
    FIELD(foveal_attention, out_a, 328),
    FIELD(foveal_attention, lse_a, 336),
    FIELD(foveal_attention, out_b, 344),
    FIELD(foveal_attention, lse_b, 352),
    SIZE(foveal_device, 24),
    FIELD(foveal_device, struct_size, 0),
    FIELD(foveal_device, device, 8),
    FIELD(foveal_device, num_threads, 16),
    FIELD(foveal_device, reserved, 20),
    SIZE(foveal_cpu_executor, 24),
    FIELD(foveal_cpu_executor, struct_size, 0),
    FIELD(foveal_cpu_executor, parallel_for, 8),
    FIELD(foveal_cpu_executor, context, 16),
    SIZE(foveal_oracle_options, 32),
    FIELD(foveal_oracle_options, struct_size, 0),
    FIELD(foveal_oracle_options, rows, 8),
    FIELD(foveal_oracle_options, num_rows, 16),
    FIELD(foveal_oracle_options, use_given_out_and_lse, 24),
    FIELD(foveal_oracle_options, num_threads, 28),
    SIZE(foveal_oracle_results, 88),
    FIELD(foveal_oracle_results, struct_size, 0),
    FIELD(foveal_oracle_results, out, 8),
    FIELD(foveal_oracle_results, lse, 16),
    FIELD(foveal_oracle_results, dq, 24),
    FIELD(foveal_oracle_results, dk, 32),
    FIELD(foveal_oracle_results, dv, 40),
    FIELD(foveal_oracle_results, dbias, 48),
    FIELD(foveal_oracle_results, dsinks, 56),
    FIELD(foveal_oracle_results, k, 64),
    FIELD(foveal_oracle_results, v, 72),
    FIELD(foveal_oracle_results, q_rotated, 80),
    /* DLPack is part of the interface: another dlpack.h must have the same tensor. */
    SIZE(DLTensor, 48),
    FIELD(DLTensor, data, 0),
    FIELD(DLTensor, device, 8),
    FIELD(DLTensor, ndim, 16),
    FIELD(DLTensor, dtype, 20),
    FIELD(DLTensor, shape, 24),
    FIELD(DLTensor, strides, 32),
    FIELD(DLTensor, byte_offset, 40),
    SIZE(foveal_status, 4),
    SIZE(foveal_pass, 4),
    VALUE(FOVEAL_OK, 0),
    VALUE(FOVEAL_INVALID_ARGUMENT, 1),
    VALUE(FOVEAL_UNSUPPORTED, 2),
    VALUE(FOVEAL_OUT_OF_MEMORY, 3),
    VALUE(FOVEAL_DEVICE_ERROR, 4),
    VALUE(FOVEAL_IO_ERROR, 5),
    VALUE(FOVEAL_INTERNAL, 6),
    VALUE(FOVEAL_FORWARD, 0),
    VALUE(FOVEAL_BACKWARD, 1),
    VALUE(FOVEAL_APPEND, 2),
    VALUE(FOVEAL_MERGE, 3),
    VALUE(FOVEAL_LOG_INFO, 0),
    VALUE(FOVEAL_LOG_WARNING, 1),
    VALUE(FOVEAL_WORKSPACE_ALIGNMENT, 256),
    VALUE(FOVEAL_ABI_VERSION, 1),
};

int main(void) {
  int wrong = 0;
  size_t i;
  for (i = 0; i < sizeof kPinned / sizeof kPinned[0]; ++i) {
    if (kPinned[i].actual == kPinned[i].pinned) continue;
    ++wrong;
    printf("%s is %lu, pinned at %lu\n", kPinned[i].what, (unsigned long)kPinned[i].actual,
           (unsigned long)kPinned[i].pinned);
  }
  /* The library that was loaded is the one of this header. */
  if (foveal_abi_version() != FOVEAL_ABI_VERSION) {
    ++wrong;
    printf("the library's ABI version is %d, the header's %d\n", (int)foveal_abi_version(),
           FOVEAL_ABI_VERSION);
  }
  if (strcmp(foveal_version(), FOVEAL_EXPECTED_VERSION) != 0) {
    ++wrong;
    printf("foveal_version() is %s, the project's %s\n", foveal_version(), FOVEAL_EXPECTED_VERSION);
  }
  printf("%d of %d wrong\n", wrong, (int)(sizeof kPinned / sizeof kPinned[0]) + 2);
  return wrong == 0 ? 0 : 1;
}
