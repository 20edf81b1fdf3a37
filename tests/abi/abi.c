/* What a C program sees of FCCL: that fccl.h is C99, that no number and no offset of the ABI has moved, that the
 * initializers give what they say, and that two ranks on threads can reduce. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "fccl.h"
#include "fccl_device.h"

static int failures = 0;

#define EXPECT(condition)                                                     \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                             \
    }                                                                         \
  } while (0)

/* C99 has no static_assert; an array of negative size does not compile. */
#define PIN(name, condition) typedef char pin_##name[(condition) ? 1 : -1]

PIN(unique_id, sizeof(fcclUniqueId) == 128);
PIN(result_enum, sizeof(fcclResult_t) == 4);
PIN(dtype_enum, sizeof(fcclDataType_t) == 4);
PIN(handle, sizeof(fcclComm_t) == sizeof(void*) && sizeof(fcclStream_t) == sizeof(void*));

/* Results, types and operators are NCCL's numbers. */
PIN(results, fcclSuccess == 0 && fcclUnhandledCudaError == 1 && fcclSystemError == 2 && fcclInternalError == 3 &&
                 fcclInvalidArgument == 4 && fcclInvalidUsage == 5 && fcclRemoteError == 6 && fcclInProgress == 7);
PIN(integers, fcclInt8 == 0 && fcclChar == 0 && fcclUint8 == 1 && fcclInt32 == 2 && fcclInt == 2 && fcclUint32 == 3 &&
                  fcclInt64 == 4 && fcclUint64 == 5);
PIN(floats, fcclFloat16 == 6 && fcclHalf == 6 && fcclFloat32 == 7 && fcclFloat == 7 && fcclFloat64 == 8 &&
                fcclDouble == 8 && fcclBfloat16 == 9);
PIN(operators, fcclSum == 0 && fcclProd == 1 && fcclMax == 2 && fcclMin == 3 && fcclAvg == 4);
/* TensorRT-LLM's numbers. */
PIN(strategies, fcclStrategyMinLatency == 1 && fcclStrategyUb == 2 && fcclStrategyAuto == 3 &&
                    fcclStrategyOneshot == 4 && fcclStrategyTwoshot == 5);
PIN(patterns, fcclPatternAllReduce == 0 && fcclPatternRmsNorm == 1 && fcclPatternResidualRmsNorm == 2 &&
                  fcclPatternResidualRmsNormQuantFp8 == 3 && fcclPatternResidualRmsNormOutQuantFp8 == 4 &&
                  fcclPatternResidualRmsNormQuantNvfp4 == 5 && fcclPatternResidualRmsNormOutQuantNvfp4 == 6);
PIN(layouts, fcclScaleSwizzled128x4 == 0 && fcclScaleSwizzled8x4 == 1 && fcclScaleLinear == 2);
PIN(devices, fcclDeviceAuto == 0 && fcclDeviceHost == 1 && fcclDeviceCuda == 2);
PIN(shared_memory, fcclSharedMemoryAuto == 0 && fcclSharedMemoryMemfd == 1 && fcclSharedMemoryPosix == 2);
PIN(constants, FCCL_SPLIT_NOCOLOR == -1 && FCCL_DTYPE_SAME == -1 && FCCL_CONFIG_UNDEF_INT == -1 &&
                   FCCL_CONFIG_MAGIC == 0xfcc1c0deu && FCCL_FUSED_ARGS_MAGIC == 0xfcc1f05eu &&
                   FCCL_DEVICE_PUSH_MAGIC == 0xfcc1dec1u && FCCL_DEVICE_PUSH_VERSION == 1u &&
                   FCCL_PUSH_SENTINEL == 0x80000000u);
PIN(version, FCCL_VERSION(1, 2, 3) == 10203);

#if defined(__LP64__)
PIN(query, sizeof(fcclQuery_t) == 64 && offsetof(fcclQuery_t, pattern) == 16 && offsetof(fcclQuery_t, tokens) == 32 &&
               offsetof(fcclQuery_t, inputInWindow) == 48 && offsetof(fcclQuery_t, strategy) == 56);
PIN(config_size, sizeof(fcclConfig_t) == 80);
PIN(config_version_3, offsetof(fcclConfig_t, nccl) == 68);
PIN(config_version_4, FCCL_CONFIG_VERSION == 4u && offsetof(fcclConfig_t, tuningFile) == 72);
PIN(config_cuda, offsetof(fcclConfig_t, cudaDevice) == 56 && offsetof(fcclConfig_t, allowSharedDevice) == 60 &&
                     offsetof(fcclConfig_t, cudaWorkspaceBytes) == 64);
PIN(config_head,
    offsetof(fcclConfig_t, size) == 0 && offsetof(fcclConfig_t, magic) == 8 && offsetof(fcclConfig_t, version) == 12);
PIN(config_fields, offsetof(fcclConfig_t, deviceType) == 16 && offsetof(fcclConfig_t, strategy) == 20 &&
                       offsetof(fcclConfig_t, checkCalls) == 24 && offsetof(fcclConfig_t, timeoutMs) == 28 &&
                       offsetof(fcclConfig_t, initTimeoutMs) == 32 && offsetof(fcclConfig_t, sharedMemory) == 36 &&
                       offsetof(fcclConfig_t, bindCores) == 40 && offsetof(fcclConfig_t, slotBytes) == 44 &&
                       offsetof(fcclConfig_t, netName) == 48);
PIN(fused_size, sizeof(fcclFusedArgs_t) == 152);
/* Version 1 had 144 bytes, version 2 as many as 3, its last four padding. */
PIN(fused_version_2, offsetof(fcclFusedArgs_t, inputPushed) == 144);
PIN(fused_version_3, FCCL_FUSED_ARGS_VERSION == 3 && offsetof(fcclFusedArgs_t, residualSharded) == 148);
PIN(fused_head, offsetof(fcclFusedArgs_t, size) == 0 && offsetof(fcclFusedArgs_t, magic) == 8 &&
                    offsetof(fcclFusedArgs_t, version) == 12);
PIN(fused_numbers, offsetof(fcclFusedArgs_t, pattern) == 16 && offsetof(fcclFusedArgs_t, dtype) == 20 &&
                       offsetof(fcclFusedArgs_t, tokens) == 24 && offsetof(fcclFusedArgs_t, hidden) == 32);
PIN(fused_inputs, offsetof(fcclFusedArgs_t, input) == 40 && offsetof(fcclFusedArgs_t, residual) == 48 &&
                      offsetof(fcclFusedArgs_t, weight) == 56 && offsetof(fcclFusedArgs_t, weightDtype) == 64 &&
                      offsetof(fcclFusedArgs_t, weightBias) == 68 && offsetof(fcclFusedArgs_t, eps) == 72);
PIN(fused_outputs, offsetof(fcclFusedArgs_t, reducedOut) == 80 && offsetof(fcclFusedArgs_t, residualOut) == 88 &&
                       offsetof(fcclFusedArgs_t, normOut) == 96 && offsetof(fcclFusedArgs_t, quantOut) == 104 &&
                       offsetof(fcclFusedArgs_t, scaleOut) == 112);
PIN(fused_scales, offsetof(fcclFusedArgs_t, fp8DequantScale) == 120 &&
                      offsetof(fcclFusedArgs_t, nvfp4GlobalScale) == 128 &&
                      offsetof(fcclFusedArgs_t, scaleLayout) == 136 && offsetof(fcclFusedArgs_t, strategy) == 140);
PIN(push_size, sizeof(fcclDevicePush_t) == 648 && FCCL_DEVICE_PUSH_MAX_RANKS == 72);
PIN(push_head, offsetof(fcclDevicePush_t, size) == 0 && offsetof(fcclDevicePush_t, magic) == 8 &&
                   offsetof(fcclDevicePush_t, version) == 12);
PIN(push_shape, offsetof(fcclDevicePush_t, rank) == 16 && offsetof(fcclDevicePush_t, ranks) == 20 &&
                    offsetof(fcclDevicePush_t, tokens) == 24 && offsetof(fcclDevicePush_t, hidden) == 32 &&
                    offsetof(fcclDevicePush_t, dtype) == 40 && offsetof(fcclDevicePush_t, elementBytes) == 44);
PIN(push_slots, offsetof(fcclDevicePush_t, rowBytes) == 48 && offsetof(fcclDevicePush_t, epochBytes) == 52 &&
                    offsetof(fcclDevicePush_t, epoch) == 56 && offsetof(fcclDevicePush_t, aborted) == 64 &&
                    offsetof(fcclDevicePush_t, slots) == 72);
#endif

static void checkInitializers(void) {
  const fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  const fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
  const fcclDevicePush_t push = FCCL_DEVICE_PUSH_INITIALIZER;
  EXPECT(config.size == sizeof(config) && config.magic == FCCL_CONFIG_MAGIC && config.version == FCCL_CONFIG_VERSION);
  EXPECT(config.deviceType == -1 && config.strategy == -1 && config.checkCalls == -1 && config.timeoutMs == -1);
  EXPECT(config.initTimeoutMs == -1 && config.sharedMemory == -1 && config.bindCores == -1 && config.slotBytes == -1);
  EXPECT(config.netName == NULL && config.cudaDevice == -1 && config.allowSharedDevice == -1);
  EXPECT(config.cudaWorkspaceBytes == -1);
  EXPECT(args.size == sizeof(args) && args.magic == FCCL_FUSED_ARGS_MAGIC && args.version == FCCL_FUSED_ARGS_VERSION);
  EXPECT(args.pattern == fcclPatternAllReduce && args.dtype == fcclBfloat16 && args.tokens == 0 && args.hidden == 0);
  EXPECT(args.input == NULL && args.residual == NULL && args.weight == NULL && args.weightDtype == FCCL_DTYPE_SAME);
  EXPECT(args.weightBias == 0.0f && args.eps == 1e-5f);
  EXPECT(args.reducedOut == NULL && args.residualOut == NULL && args.normOut == NULL && args.quantOut == NULL);
  EXPECT(args.scaleOut == NULL && args.fp8DequantScale == NULL && args.nvfp4GlobalScale == NULL);
  EXPECT(args.scaleLayout == fcclScaleSwizzled128x4 && args.strategy == fcclStrategyAuto && args.inputPushed == 0);
  EXPECT(args.residualSharded == 0);
  EXPECT(push.size == sizeof(push) && push.magic == FCCL_DEVICE_PUSH_MAGIC && push.version == FCCL_DEVICE_PUSH_VERSION);
  EXPECT(push.ranks == 0 && push.epoch == NULL && push.slots[0] == NULL);
  EXPECT(push.slots[FCCL_DEVICE_PUSH_MAX_RANKS - 1] == NULL);
}

/* fcclFusedArgs_t as version 1 of it was. */
struct FusedArgsVersion1 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int pattern, dtype;
  int64_t tokens, hidden;
  const void *input, *residual, *weight;
  int weightDtype;
  float weightBias, eps;
  void *reducedOut, *residualOut, *normOut, *quantOut, *scaleOut;
  const float *fp8DequantScale, *nvfp4GlobalScale;
  int scaleLayout, strategy;
};

/* What a program does that was built with the header of then. */
static int callVersion1(fcclComm_t comm) {
  float values[4] = {1, 2, 3, 4};
  struct FusedArgsVersion1 args;
  int grouped;
  memset(&args, 0, sizeof(args));
  args.size = sizeof(args);
  args.magic = FCCL_FUSED_ARGS_MAGIC;
  args.version = 1;
  args.pattern = fcclPatternAllReduce;
  args.dtype = fcclFloat32;
  args.tokens = 2;
  args.hidden = 2;
  args.input = values;
  args.reducedOut = values;
  args.weightDtype = FCCL_DTYPE_SAME;
  args.strategy = fcclStrategyAuto;
  for (grouped = 0; grouped < 2; ++grouped) {
    if (grouped && fcclGroupStart() != fcclSuccess) return 1;
    if (fcclAllReduceFused((const fcclFusedArgs_t*)&args, comm, NULL) != fcclSuccess) return 1;
    if (grouped && fcclGroupEnd() != fcclSuccess) return 1;
  }
  return values[0] != 4 || values[1] != 8 || values[2] != 12 || values[3] != 16;
}

struct RankArgs {
  fcclUniqueId id;
  int rank;
  int wrong;
};

static void* runRank(void* opaque) {
  struct RankArgs* self = (struct RankArgs*)opaque;
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  fcclComm_t comm = NULL;
  float values[5] = {1, 2, 3, 4, 5};
  int i;
  config.deviceType = fcclDeviceHost;
  config.timeoutMs = 20000;
  config.initTimeoutMs = 20000;
  self->wrong = 1;
  if (fcclCommInit(&comm, 2, self->id, self->rank, &config) != fcclSuccess) {
    fprintf(stderr, "rank %d: %s\n", self->rank, fcclGetLastError(NULL));
    return NULL;
  }
  for (i = 0; i < 5; ++i) values[i] *= (float)(self->rank + 1);
  self->wrong = fcclAllReduce(values, values, 5, fcclFloat32, fcclSum, comm, NULL) != fcclSuccess;
  for (i = 0; i < 5; ++i) self->wrong |= values[i] != 3.0f * (float)(i + 1);
  self->wrong |= callVersion1(comm);
  /* A wrong call, and the sentence that says so. */
  self->wrong |= fcclAllReduce(NULL, values, 5, fcclFloat32, fcclSum, comm, NULL) != fcclInvalidArgument;
  self->wrong |= strstr(fcclGetLastError(comm), "sendbuff") == NULL;
  self->wrong |= fcclCommDestroy(comm) != fcclSuccess;
  return NULL;
}

int main(void) {
  struct RankArgs ranks[2];
  pthread_t threads[2];
  fcclUniqueId id;
  int version = 0;
  int rank;
  checkInitializers();
  EXPECT(fcclGetVersion(&version) == fcclSuccess && version == FCCL_VERSION_CODE);
  EXPECT(strlen(fcclGetErrorString(fcclSuccess)) > 0);
  EXPECT(fcclGetUniqueId(&id) == fcclSuccess);
  for (rank = 0; rank < 2; ++rank) {
    ranks[rank].id = id;
    ranks[rank].rank = rank;
    EXPECT(pthread_create(&threads[rank], NULL, runRank, &ranks[rank]) == 0);
  }
  for (rank = 0; rank < 2; ++rank) {
    pthread_join(threads[rank], NULL);
    EXPECT(ranks[rank].wrong == 0);
  }
  if (failures == 0) puts("abi: as pinned");
  return failures == 0 ? 0 : 1;
}
