/* Four ranks as threads: all-reduce, residual add and RMSNorm in one call.   cc hello.c -lfccl -lpthread && ./a.out */
#include <fccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(ok, why) ((ok) ? (void)0 : (fprintf(stderr, "%s: %s\n", #ok, why), exit(1)))
#define FCCL(call) CHECK((call) == fcclSuccess, fcclGetLastError(NULL))
static fcclComm_t comms[4];

static void* rankMain(void* argument) {
  const int rank = (int)((fcclComm_t*)argument - comms);
  const float x = (float)rank, partial[4] = {x, x, x, x}; /* this rank's part of the sums of a row-parallel GEMM */
  float residual[4] = {2, 4, 6, 8}, weight[4] = {1, 1, 1, 1}, norm[4];
  fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
  args.pattern = fcclPatternResidualRmsNorm, args.dtype = fcclFloat32, args.tokens = 1, args.hidden = 4;
  args.input = partial, args.residual = args.residualOut = residual, args.weight = weight, args.normOut = norm;
  FCCL(fcclAllReduceFused(&args, comms[rank], NULL));
  printf("rank %d: residual %g %g %g %g, norm %.4f %.4f %.4f %.4f\n", rank, residual[0], residual[1], residual[2],
         residual[3], norm[0], norm[1], norm[2], norm[3]);
  FCCL(fcclCommDestroy(comms[rank]));
  return NULL;
}

int main(void) {
  pthread_t threads[4];
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceHost;
  FCCL(fcclCommInitAll(comms, 4, &config));
  for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, rankMain, &comms[i]), "no thread");
  for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], NULL), "not joined");
}
