/* One decoder layer's all-reduce on every GPU of this machine, with NCCL: a thread per GPU, NCCL's own communicator.
 * after.c is the same program with FCCL in place of ncclAllReduce; `diff before.c after.c` is all that changes.
 *   cc before.c -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lnccl -lcudart -lpthread */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(ok) ((ok) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #ok), exit(1)))
#define NO_GPU 4 /* the exit status that means: skipped */
enum { kTokens = 64, kHidden = 8192, kCount = kTokens * kHidden, kLayers = 20, kMostGpus = 8 };

static int gpus;
static ncclUniqueId id;

static void* rankMain(void* argument) {
  const int rank = (int)(size_t)argument;
  float* data = NULL;
  cudaStream_t stream = NULL;
  ncclComm_t nccl = NULL;
  CHECK(cudaSetDevice(rank) == cudaSuccess);
  CHECK(cudaStreamCreate(&stream) == cudaSuccess);
  CHECK(ncclCommInitRank(&nccl, gpus, id, rank) == ncclSuccess);

  float* host = malloc(kCount * sizeof(float));
  for (int i = 0; i < kCount; i++) host[i] = (float)(rank + 1) * (float)(i % 100);
  CHECK(cudaMalloc((void**)&data, kCount * sizeof(float)) == cudaSuccess);
  CHECK(cudaMemcpyAsync(data, host, kCount * sizeof(float), cudaMemcpyHostToDevice, stream) == cudaSuccess);

  for (int layer = 0; layer < kLayers; layer++) {
    CHECK(ncclAllReduce(data, data, kCount, ncclFloat32, ncclSum, nccl, stream) == ncclSuccess);
    if (layer == 0)
      CHECK(cudaMemcpyAsync(host, data, kCount * sizeof(float), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(cudaMemsetAsync(data, 0, kCount * sizeof(float), stream) == cudaSuccess);
  }
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  for (int i = 0; i < kCount; i++) CHECK(host[i] == (float)(gpus * (gpus + 1) / 2) * (float)(i % 100));

  CHECK(ncclCommDestroy(nccl) == ncclSuccess);
  CHECK(cudaFree(data) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  free(host);
  return NULL;
}

int main(void) {
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return printf("no GPU here\n"), NO_GPU;
  if (gpus > kMostGpus) gpus = kMostGpus;
  CHECK(ncclGetUniqueId(&id) == ncclSuccess);
  pthread_t threads[kMostGpus];
  for (int r = 0; r < gpus; r++) CHECK(pthread_create(&threads[r], NULL, rankMain, (void*)(size_t)r) == 0);
  for (int r = 0; r < gpus; r++) CHECK(pthread_join(threads[r], NULL) == 0);
  printf("%d x %d fp32 all-reduced on %d GPU%s, %d times: right\n", kTokens, kHidden, gpus, gpus == 1 ? "" : "s",
         kLayers);
  return 0;
}
