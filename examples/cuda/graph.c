#include "graph.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

struct gpu_graph {
  cudaStream_t stream;
  cudaGraphExec_t executable;
  void* memory;
  size_t memory_bytes;
  void* workspace;
};

static int succeeded(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return 1;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return 0;
}

/* A stream that is being captured runs nothing: what is launched on it becomes the nodes of a
 * graph, each with the arguments of its launch. Pointers are such arguments, so a replay reads
 * whatever the memory holds by then. */
static int record(gpu_graph* graph, gpu_launch launch, void* context) {
  cudaGraph_t recorded = NULL;
  int launched, ended, made;
  if (!succeeded(cudaStreamBeginCapture(graph->stream, cudaStreamCaptureModeThreadLocal),
                 "cudaStreamBeginCapture")) {
    return 0;
  }
  launched = launch(context, graph->memory, graph->workspace, graph->stream) == 0;
  /* Also after a failure: the stream must leave its capture. */
  ended = succeeded(cudaStreamEndCapture(graph->stream, &recorded), "cudaStreamEndCapture");
  made = launched && ended &&
         succeeded(cudaGraphInstantiate(&graph->executable, recorded, 0), "cudaGraphInstantiate");
  if (recorded != NULL) cudaGraphDestroy(recorded);
  return made;
}

gpu_graph* gpu_graph_record(int device, size_t memory_bytes, size_t workspace_bytes,
                            gpu_launch launch, void* context) {
  gpu_graph* graph = calloc(1, sizeof *graph);
  if (graph == NULL) return NULL;
  graph->memory_bytes = memory_bytes;
  if (succeeded(cudaSetDevice(device), "cudaSetDevice") &&
      succeeded(cudaStreamCreateWithFlags(&graph->stream, cudaStreamNonBlocking), "a stream") &&
      succeeded(cudaMalloc(&graph->memory, memory_bytes), "memory on the GPU") &&
      /* cudaMalloc gives at least 256-byte alignment, which is FOVEAL_WORKSPACE_ALIGNMENT. */
      (workspace_bytes == 0 ||
       succeeded(cudaMalloc(&graph->workspace, workspace_bytes), "a workspace on the GPU")) &&
      record(graph, launch, context)) {
    return graph;
  }
  gpu_graph_free(graph);
  return NULL;
}

int gpu_graph_replay(gpu_graph* graph, void* host_memory) {
  const size_t bytes = graph->memory_bytes;
  const cudaStream_t stream = graph->stream;
  const int done =
      succeeded(cudaMemcpyAsync(graph->memory, host_memory, bytes, cudaMemcpyHostToDevice, stream),
                "the copy to the GPU") &&
      succeeded(cudaGraphLaunch(graph->executable, stream), "cudaGraphLaunch") &&
      succeeded(cudaMemcpyAsync(host_memory, graph->memory, bytes, cudaMemcpyDeviceToHost, stream),
                "the copy from the GPU") &&
      succeeded(cudaStreamSynchronize(stream), "the graph");
  return done ? 0 : 1;
}

void gpu_graph_free(gpu_graph* graph) {
  if (graph == NULL) return;
  if (graph->executable != NULL) cudaGraphExecDestroy(graph->executable);
  cudaFree(graph->workspace);
  cudaFree(graph->memory);
  if (graph->stream != NULL) cudaStreamDestroy(graph->stream);
  free(graph);
}
