/* What the decode examples need of a GPU: one block of memory there, and launches over it that are
 * recorded once as a CUDA graph and replayed as often as wanted.
 *
 * foveal's headers name nothing of CUDA, so this is the one place that does. Without
 * EXAMPLES_WITH_CUDA a program says so when it is asked for a GPU; with it, compile graph.c too:
 *
 *   cc -DEXAMPLES_WITH_CUDA -I/usr/local/cuda/include decode_cache.c ../cuda/graph.c \
 *     $(pkg-config --cflags --libs foveal) -L/usr/local/cuda/lib64 -lcudart -lm
 */
#ifndef FOVEAL_EXAMPLES_CUDA_GRAPH_H_
#define FOVEAL_EXAMPLES_CUDA_GRAPH_H_

#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Puts work on `stream`, a cudaStream_t, that uses `memory` and `workspace` on the GPU. Only their
 * addresses may be used: the host can't read them. 0 when all was launched. */
typedef int (*gpu_launch)(void* context, void* memory, void* workspace, void* stream);

typedef struct gpu_graph gpu_graph;

#ifdef EXAMPLES_WITH_CUDA

/* Allocates on GPU number `device` and records what `launch` does; nothing runs yet. NULL after an
 * error, which has been printed. */
gpu_graph* gpu_graph_record(int device, size_t memory_bytes, size_t workspace_bytes,
                            gpu_launch launch, void* context);

/* Copies the block to the GPU, runs the recorded launches and copies it back. 0, or 1 after an
 * error, which has been printed. */
int gpu_graph_replay(gpu_graph* graph, void* host_memory);

void gpu_graph_free(gpu_graph* graph); /* Takes NULL. */

#else

static inline gpu_graph* gpu_graph_record(int device, size_t memory_bytes, size_t workspace_bytes,
                                          gpu_launch launch, void* context) {
  (void)memory_bytes, (void)workspace_bytes, (void)launch, (void)context;
  fprintf(stderr, "cuda:%d: this program was compiled without EXAMPLES_WITH_CUDA\n", device);
  return NULL;
}

static inline int gpu_graph_replay(gpu_graph* graph, void* host_memory) {
  (void)graph, (void)host_memory;
  return 1;
}

static inline void gpu_graph_free(gpu_graph* graph) { (void)graph; }

#endif

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FOVEAL_EXAMPLES_CUDA_GRAPH_H_ */
