/* FCCL: fused collective communication for tensor-parallel LLM inference.
 *
 * Plain C99, no CUDA headers needed. Conventions are NCCL's: every call returns a result, the values of results, data
 * types and reduction operators are NCCL's numbers, and a stream is the type that CUDA calls cudaStream_t.
 *
 * Devices. A communicator runs on one kind of device; its ranks are processes or threads of one machine.
 *   HOST  Buffers are ordinary memory, the stream argument is NULL, and a call returns when the result is there.
 *   CUDA  Each rank has a GPU. Buffers are memory that this GPU can read and write; a call is enqueued on the caller's
 *         stream (NULL: the legacy default stream) and returns. It reads and writes user memory in the order of that
 *         stream only, and may be captured into a graph, the first call of a communicator too; a graph may be replayed
 *         any number of times, mixed with other calls, as long as all ranks do the same in the same order.
 *
 * Threads. One rank is driven by one thread at a time: two threads may not be inside collectives of the same
 * communicator at once. fcclCommAbort, fcclCommGetAsyncError and fcclGetLastError may be called from any thread at any
 * time.
 *
 * Order. All ranks of a communicator issue the same collectives in the same order with the same shapes. With
 * FCCL_CHECK=1 (or checkCalls in the configuration) a disagreement is fcclInvalidUsage on every rank, with both calls
 * in fcclGetLastError; without it the results are undefined, and calls may wait until the time limit. On CUDA the calls
 * of one communicator are one sequence: enqueue them on one stream, or order the streams by events. Kernels of two
 * communicators that share a GPU wait for their peers at the same time, so give each a stream of its own that other
 * waiting work does not block. A thread with several HOST communicators calls them in the same order on all ranks.
 *
 * Errors. Arguments are checked before anything moves. fcclGetLastError gives a sentence that names the argument, its
 * value and what was expected. On CUDA a rank that dies, aborts or stays away past the time limit makes the kernels
 * that wait for it end, without a trap: the streams go on, the outputs of those calls are undefined, and
 * fcclCommGetAsyncError and every later call tell why. Ask it after the stream has been synchronised. */
#ifndef FCCL_H_
#define FCCL_H_

#include <stddef.h>
#include <stdint.h>

#define FCCL_MAJOR 0
#define FCCL_MINOR 1
#define FCCL_PATCH 0
#define FCCL_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define FCCL_VERSION_CODE FCCL_VERSION(FCCL_MAJOR, FCCL_MINOR, FCCL_PATCH)

#if defined(__GNUC__)
#define FCCL_API __attribute__((visibility("default")))
#else
#define FCCL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Types ---------------------------------------------------------------------------------------------------- */

typedef struct fcclComm* fcclComm_t;
typedef struct fcclWindow* fcclWindow_t;

/* The same type as cudaStream_t. NULL on a HOST communicator; on CUDA NULL is the legacy default stream. */
typedef struct CUstream_st* fcclStream_t;

/* Names the group that is to be formed: the address of rank 0's listener and a random secret. */
#define FCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[FCCL_UNIQUE_ID_BYTES];
} fcclUniqueId;

typedef enum {
  fcclSuccess = 0,
  fcclUnhandledCudaError = 1, /* a CUDA call failed */
  fcclSystemError = 2,        /* the operating system refused something, or a time limit passed during start-up */
  fcclInternalError = 3,      /* a fault of FCCL itself */
  fcclInvalidArgument = 4,    /* one argument is wrong by itself; nothing has been moved */
  fcclInvalidUsage = 5,       /* the call does not fit the calls before it or those of the other ranks */
  fcclRemoteError = 6,        /* another rank died, aborted, or did not arrive within the time limit */
  fcclInProgress = 7
} fcclResult_t;

typedef enum {
  fcclInt8 = 0,
  fcclChar = 0,
  fcclUint8 = 1,
  fcclInt32 = 2,
  fcclInt = 2,
  fcclUint32 = 3,
  fcclInt64 = 4,
  fcclUint64 = 5,
  fcclFloat16 = 6,
  fcclHalf = 6,
  fcclFloat32 = 7,
  fcclFloat = 7,
  fcclFloat64 = 8,
  fcclDouble = 8,
  fcclBfloat16 = 9
} fcclDataType_t;

typedef enum { fcclSum = 0, fcclProd = 1, fcclMax = 2, fcclMin = 3, fcclAvg = 4 } fcclRedOp_t;

/* The numbers are TensorRT-LLM's AllReduceStrategyType, so that its users can pass theirs through. */
typedef enum {
  fcclStrategyNccl = 0,         /* CUDA: ncclAllReduce, then what follows it in one kernel */
  fcclStrategyMinLatency = 1,   /* ONESHOT for few bytes, TWOSHOT above */
  fcclStrategyUb = 2,           /* user buffers: peers read the registered window itself, nothing is staged */
  fcclStrategyAuto = 3,         /* FCCL chooses */
  fcclStrategyOneshot = 4,      /* every rank gets every rank's data and reduces all of it */
  fcclStrategyTwoshot = 5,      /* every rank reduces its share, then the shares are gathered */
  fcclStrategyLowPrecision = 6, /* as TWOSHOT, FP8 on the wire: inputs and sums are rounded to 4 significant bits */
  fcclStrategyNcclSymmetric = 8 /* CUDA: as NCCL, staged in a symmetric window of NCCL (2.27 and newer) */
} fcclStrategy_t;

/* What happens to the reduced rows, in this order; s, r, n as defined at fcclAllReduceFused. */
typedef enum {
  fcclPatternAllReduce = 0,                   /* reducedOut = s */
  fcclPatternRmsNorm = 1,                     /* normOut = norm(s) */
  fcclPatternResidualRmsNorm = 2,             /* residualOut = r, normOut = n */
  fcclPatternResidualRmsNormQuantFp8 = 3,     /* residualOut, quantOut = e4m3 of n */
  fcclPatternResidualRmsNormOutQuantFp8 = 4,  /* residualOut, normOut, quantOut */
  fcclPatternResidualRmsNormQuantNvfp4 = 5,   /* residualOut, quantOut = e2m1 of n, scaleOut */
  fcclPatternResidualRmsNormOutQuantNvfp4 = 6 /* residualOut, normOut, quantOut, scaleOut */
} fcclFusionPattern_t;

/* Where the scale of block k (16 columns) of row m stands in scaleOut; K = hidden / 16, KT = ceil(K / 4). */
typedef enum {
  fcclScaleSwizzled128x4 = 0, /* (m/128)*KT*512 + (k/4)*512 + (m%32)*16 + ((m%128)/32)*4 + k%4; rows padded to 128 */
  fcclScaleSwizzled8x4 = 1,   /* (m/8)*KT*32 + (k/4)*32 + (m%8)*4 + k%4; rows padded to 8 */
  fcclScaleLinear = 2         /* m*K + k; no padding */
} fcclScaleLayout_t;

typedef enum {
  fcclDeviceAuto = 0, /* CUDA where this process has a usable GPU and the library its CUDA half, else HOST */
  fcclDeviceHost = 1,
  fcclDeviceCuda = 2 /* a GPU of compute capability 8.0 or more */
} fcclDeviceType_t;

/* Where ranks of different processes find their common memory. Threads of one process always use plain memory. */
typedef enum {
  fcclSharedMemoryAuto = 0,  /* memfd, else POSIX */
  fcclSharedMemoryMemfd = 1, /* anonymous memory, its descriptor passed over an abstract Unix socket */
  fcclSharedMemoryPosix = 2  /* a file in /dev/shm, unlinked as soon as all ranks have it */
} fcclSharedMemory_t;

/* ---- Configuration -------------------------------------------------------------------------------------------- */

#define FCCL_CONFIG_MAGIC 0xfcc1c0deu
/* Version 2 ended with cudaWorkspaceBytes, 3 with nccl; a program that was built with them is served as before. */
#define FCCL_CONFIG_VERSION 4u
#define FCCL_CONFIG_UNDEF_INT (-1)

/* Start from FCCL_CONFIG_INITIALIZER and change fields. An environment variable, where set, wins over the field.
 * Fields marked (all) must have the same value on every rank; a difference fails the initialisation on every rank. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int deviceType; /* fcclDeviceType_t; FCCL_DEVICE=auto|host|cuda (all) */
  int strategy;   /* fcclStrategy_t that stands for AUTO; AUTO decides calls that it cannot do, which INFO and
                     fcclExplain say; FCCL_STRATEGY (all) */
  int checkCalls; /* 1: compare the calls of all ranks; FCCL_CHECK (all). On CUDA the threads that make them wait for
                     each other then; a call that is being captured is not compared */
  int timeoutMs;  /* a collective that waits longer for a rank fails with fcclRemoteError; 0: never; FCCL_TIMEOUT_MS */
  int initTimeoutMs;     /* the same for initialisation; FCCL_INIT_TIMEOUT_MS */
  int sharedMemory;      /* fcclSharedMemory_t; FCCL_SHARED_MEMORY=auto|memfd|posix (all) */
  int bindCores;         /* 1: bind the calling thread to a core of its own, chosen by hwloc; FCCL_BIND_CORES */
  int slotBytes;         /* bytes of one staging slot; each rank holds 8 of them; FCCL_SLOT_BYTES (all) */
  const char* netName;   /* network interface of the rendezvous; FCCL_SOCKET_IFNAME */
  int cudaDevice;        /* CUDA: this rank's GPU, as cudaSetDevice counts; left undefined: the calling thread's current
                            one, in fcclCommInitAll GPU r for rank r */
  int allowSharedDevice; /* CUDA: 1: several ranks may use one GPU, for tests; FCCL_ALLOW_SHARED_DEVICE (all). Such
                            ranks of one process share the GPU's queues too. Before a call that waits for others let
                            copies end and the first kernel of its stream; cudaFree, cudaFreeHost and the first launch
                            of a kernel wait for all that runs, so end them on all ranks before. Other kernels find
                            room beside ranks that wait if a block of theirs needs at most a quarter of a
                            multiprocessor */
  int cudaWorkspaceBytes; /* CUDA: bytes of one of the three staging areas that each rank has in its GPU's memory; a
                             call that needs more runs in parts; FCCL_CUDA_WORKSPACE_BYTES (all) */
  int nccl; /* CUDA: 1: make an NCCL communicator too, for strategies NCCL and NCCL_SYMMETRIC and for what FCCL has no
               kernels for. Takes NCCL's time and memory. A strategy of NCCL's as `strategy` implies it. FCCL_NCCL
               (all) */
  const char* tuningFile; /* where rank 0 finds what fcclCommTune has measured before, and keeps what it measures; all
                             ranks decide by rank 0's. NULL: nowhere; FCCL_TUNING_FILE */
} fcclConfig_t;

#define FCCL_CONFIG_INITIALIZER                                                                                 \
  {                                                                                                             \
    sizeof(fcclConfig_t), FCCL_CONFIG_MAGIC, FCCL_CONFIG_VERSION, FCCL_CONFIG_UNDEF_INT, FCCL_CONFIG_UNDEF_INT, \
        FCCL_CONFIG_UNDEF_INT, FCCL_CONFIG_UNDEF_INT, FCCL_CONFIG_UNDEF_INT, FCCL_CONFIG_UNDEF_INT,             \
        FCCL_CONFIG_UNDEF_INT, FCCL_CONFIG_UNDEF_INT, NULL, FCCL_CONFIG_UNDEF_INT, FCCL_CONFIG_UNDEF_INT,       \
        FCCL_CONFIG_UNDEF_INT, FCCL_CONFIG_UNDEF_INT, NULL                                                      \
  }

/* ---- Lifecycle ------------------------------------------------------------------------------------------------ */

FCCL_API fcclResult_t fcclGetVersion(int* version);

/* Called by one rank, which then hands the id to all others. Opens a listener that the first rank-0 fcclCommInit of
 * this process with this id takes over; that call must come from this process. One id serves one communicator. */
FCCL_API fcclResult_t fcclGetUniqueId(fcclUniqueId* id);

/* Collective over nranks ranks, 256 at most; returns when all have arrived, or after the time limit with the missing
 * ranks named. config may be NULL. *comm is NULL after an error. */
FCCL_API fcclResult_t fcclCommInit(fcclComm_t* comm, int nranks, fcclUniqueId id, int rank, const fcclConfig_t* config);

/* All ranks in one process: comms[0..nranks-1]. On HOST the caller then drives each from a thread of its own. On CUDA
 * rank r is on GPU r, unless cudaDevice names one for all; with allowSharedDevice ranks beyond the last GPU begin again
 * at GPU 0. */
FCCL_API fcclResult_t fcclCommInitAll(fcclComm_t* comms, int nranks, const fcclConfig_t* config);

/* Collective over comm. Ranks with the same color form a new communicator, ordered by key, then by old rank. A rank
 * with FCCL_SPLIT_NOCOLOR takes part in the call and gets NULL. config NULL: as the parent. */
#define FCCL_SPLIT_NOCOLOR (-1)
FCCL_API fcclResult_t fcclCommSplit(fcclComm_t comm, int color, int key, fcclComm_t* newComm,
                                    const fcclConfig_t* config);

/* Ends the use of comm: later collectives are fcclInvalidUsage. fcclCommDestroy includes it. */
FCCL_API fcclResult_t fcclCommFinalize(fcclComm_t comm);

/* Gives everything back. Local: does not wait for other ranks, dead or alive. No call may be under way on comm. On CUDA
 * this includes enqueued ones (synchronise their streams first), and graphs that hold calls of comm may not be launched
 * any more. */
FCCL_API fcclResult_t fcclCommDestroy(fcclComm_t comm);

/* As destroy, but first makes calls of this rank that are under way return (fcclInvalidUsage), kernels that wait end,
 * and tells the peers, whose calls return fcclRemoteError naming this rank. May be called from any thread, and returns
 * within two seconds, as a rule at once; comm may not be used afterwards. */
FCCL_API fcclResult_t fcclCommAbort(fcclComm_t comm);

/* *asyncError: fcclSuccess, or the error that has ended the use of comm; fcclGetLastError(comm) then has its sentence.
 */
FCCL_API fcclResult_t fcclCommGetAsyncError(fcclComm_t comm, fcclResult_t* asyncError);

FCCL_API fcclResult_t fcclCommCount(fcclComm_t comm, int* count);
FCCL_API fcclResult_t fcclCommUserRank(fcclComm_t comm, int* rank);
/* *device: the rank's GPU as cudaSetDevice counts; -1 on a HOST communicator. */
FCCL_API fcclResult_t fcclCommDevice(fcclComm_t comm, int* device);

FCCL_API const char* fcclGetErrorString(fcclResult_t result);

/* The sentence of the last error of comm, or with NULL of the last error of the calling thread. Never NULL. Valid until
 * the calling thread's next call of this function. */
FCCL_API const char* fcclGetLastError(fcclComm_t comm);

/* ---- Collectives ---------------------------------------------------------------------------------------------- */

/* recvbuff[i] = op over ranks of sendbuff[i]. sendbuff == recvbuff is in place; other overlap is refused. count 0 is
 * fine, with NULL pointers.
 * Arithmetic: fp16, bf16 and fp32 are combined in fp32 in rank order and rounded once; a sum is never -0. fp64 and
 * integers are combined in their own type, integers wrap around. Min and max return NaN where any rank has NaN. Avg is
 * the sum divided by the number of ranks before the rounding (integers: truncated towards zero).
 * CUDA: sums of fp32, fp16 and bf16. Anything else NCCL computes, with NCCL's arithmetic, where the communicator has it
 * (nccl, fcclCommInitNccl), and is fcclInvalidArgument where not. The buffers may be any memory that the GPU
 * can reach; where one of them is not, the CUDA context is lost, unless FCCL_CHECK=1 finds it first. */
FCCL_API fcclResult_t fcclAllReduce(const void* sendbuff, void* recvbuff, size_t count, fcclDataType_t datatype,
                                    fcclRedOp_t op, fcclComm_t comm, fcclStream_t stream);

#define FCCL_FUSED_ARGS_MAGIC 0xfcc1f05eu
/* 1 ended with strategy, 2 with inputPushed; a program that was built with them is served as before. */
#define FCCL_FUSED_ARGS_VERSION 3u
#define FCCL_DTYPE_SAME (-1)

/* Arguments of fcclAllReduceFused. Start from FCCL_FUSED_ARGS_INITIALIZER; pointers that the pattern does not use stay
 * NULL. residual, weight and scales are the same on every rank. Allowed aliases, each exactly equal: residualOut ==
 * residual, reducedOut == input, normOut == input (the last two not together). Any other overlap of an output is
 * refused. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  fcclFusionPattern_t pattern;
  fcclDataType_t dtype; /* fp32, fp16 or bf16: input, residual, reducedOut, residualOut, normOut */
  int64_t tokens;       /* rows, >= 0 */
  int64_t hidden;       /* columns, > 0; a multiple of 16 for NVFP4; CUDA, with a norm: rows of at most 128 KiB */
  const void* input;    /* [tokens, hidden] of this rank's partial sums */
  const void* residual; /* [tokens, hidden] */
  const void* weight;   /* [hidden] of weightDtype */
  int weightDtype;      /* fcclFloat32, dtype, or FCCL_DTYPE_SAME for dtype */
  float weightBias;     /* 0, or 1 for norms that multiply by 1 + weight */
  float eps;            /* finite, >= 0 */
  void* reducedOut;     /* [tokens, hidden]; optional in all patterns but ALL_REDUCE */
  void* residualOut;    /* [tokens, hidden] */
  void* normOut;        /* [tokens, hidden] */
  void* quantOut;       /* FP8: [tokens, hidden] bytes. NVFP4: [tokens, hidden / 2], element 2i in the low nibble */
  void* scaleOut;       /* NVFP4: fcclQuantScaleBytes bytes, padding written as zero */
  const float* fp8DequantScale; /* one value; quantOut = e4m3(n * r), r the rounded 1 / *fp8DequantScale */
  const float*
      nvfp4GlobalScale; /* one value g; block scale = e4m3(g * amax / 6), element = e2m1(n * g / block scale) */
  fcclScaleLayout_t scaleLayout;
  fcclStrategy_t strategy;
  int inputPushed;     /* 1: kernels before this call have pushed the input to the peers, and nothing is sent: see
                          fccl_device.h. CUDA, AUTO or ONESHOT; the same on every rank */
  int residualSharded; /* 1: each rank keeps the residual of its own tokens only, those that fcclResidualShard names:
                          residual and residualOut are [that many, hidden], and the norm is done once, by their rank.
                          Patterns with a residual, without reducedOut; AUTO or TWOSHOT; CUDA: rows of at most 32 KiB.
                          The same on every rank */
} fcclFusedArgs_t;

#define FCCL_FUSED_ARGS_INITIALIZER                                                                                    \
  {                                                                                                                    \
    sizeof(fcclFusedArgs_t), FCCL_FUSED_ARGS_MAGIC, FCCL_FUSED_ARGS_VERSION, fcclPatternAllReduce, fcclBfloat16, 0, 0, \
        NULL, NULL, NULL, FCCL_DTYPE_SAME, 0.0f, 1e-5f, NULL, NULL, NULL, NULL, NULL, NULL, NULL,                      \
        fcclScaleSwizzled128x4, fcclStrategyAuto, 0, 0                                                                 \
  }

/* All-reduce and what follows it in a transformer layer, row by row, in one pass:
 *   s = round(sum of input over ranks)      fp32, rank order, rounded once to dtype; reducedOut
 *   r = round(s + residual)                 residualOut (patterns without residual: r = s)
 *   n = round(r * 1/sqrt(mean(r^2) + eps) * (weightBias + weight))      normOut
 *   quantOut, scaleOut from the rounded n
 * Every rank gets the same bits, and a row's bits do not depend on the other rows, on the number of tokens or on the
 * strategy; with NCCL and NCCL_SYMMETRIC the sum is NCCL's, with LOWPRECISION it has been rounded to FP8 on its way,
 * and its bits may depend on all of that. tokens 0 is fine, with NULL pointers.
 * residualSharded: all outputs have the bits that they have without it; the other ranks get of a row its normOut, or
 * where the pattern has none the quantized row, of 16-bit data a half (FP8) or about a quarter (NVFP4) of the bytes. */
FCCL_API fcclResult_t fcclAllReduceFused(const fcclFusedArgs_t* args, fcclComm_t comm, fcclStream_t stream);

/* The tokens whose residual `rank` of nranks keeps in a call of so many with residualSharded: *count from *first on, 0
 * where there are fewer tokens than ranks (residual and residualOut are NULL then). They are whole ranges in the order
 * of ranks, and the first tokens % nranks ranks have one more: from one layer to the next they are the same as long as
 * tokens are. */
FCCL_API fcclResult_t fcclResidualShard(int64_t tokens, int nranks, int rank, int64_t* first, int64_t* count);

/* *bytes: the exact size of scaleOut (0 for patterns without block scales). */
FCCL_API fcclResult_t fcclQuantScaleBytes(int64_t tokens, int64_t hidden, fcclFusionPattern_t pattern,
                                          fcclScaleLayout_t layout, size_t* bytes);

/* ---- Choice --------------------------------------------------------------------------------------------------- */

#define FCCL_QUERY_MAGIC 0xfcc1a5c0u
#define FCCL_QUERY_VERSION 1u

/* A call that is asked about. Start from FCCL_QUERY_INITIALIZER. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  fcclFusionPattern_t pattern;
  fcclDataType_t dtype; /* fp32, fp16 or bf16; with fcclPatternAllReduce any */
  fcclRedOp_t op;       /* fcclSum, but for fcclPatternAllReduce */
  int64_t tokens;       /* rows, > 0 */
  int64_t hidden;       /* columns, > 0; a multiple of 16 for NVFP4 */
  int inputInWindow;    /* 1: the input lies in a registered window */
  int outputInWindow;   /* 1: the output of a call without norm does */
  fcclStrategy_t strategy;
} fcclQuery_t;

#define FCCL_QUERY_INITIALIZER                                                                                       \
  {                                                                                                                  \
    sizeof(fcclQuery_t), FCCL_QUERY_MAGIC, FCCL_QUERY_VERSION, fcclPatternAllReduce, fcclBfloat16, fcclSum, 1, 1, 0, \
        0, fcclStrategyAuto                                                                                          \
  }

/* Writes to buffer, in words, which strategy comm takes for such a call, how that is decided, and of every other
 * strategy why it cannot do the call, or what it would need: lines of text, ended by a zero. Local; moves and enqueues
 * nothing, and may be called from any thread and while a stream is captured. Where the text does not fit, buffer holds
 * its beginning and the call is fcclInvalidArgument with the bytes that are needed; size 0 with buffer NULL asks for
 * them. The program fccl-info prints the same for machines that are not at hand. */
FCCL_API fcclResult_t fcclExplain(fcclComm_t comm, const fcclQuery_t* query, char* buffer, size_t size);

/* Collective over comm. Times, with scratch data on a stream of its own, every strategy that AUTO may take for each of
 * the n calls (1 to 4096; strategy is AUTO in all of them), epilogue included; the slowest rank's median counts. From
 * then on AUTO takes the fastest for calls of this pattern, dtype and hidden size (without a
 * norm: of any shape) whose tokens (without a norm: bytes) are up to a factor of two from the nearest that was timed,
 * on all ranks alike; fcclExplain shows the times. Between neighbours that choose differently more is timed. So an
 * engine tunes when it warms up, with powers of two of tokens, before it captures graphs; graphs keep the strategy that
 * they were captured with. Bits do not change: AUTO takes strategies of one numerics class only. budgetMs: about how
 * long it may take, rank 0's value, 0: 10 s; what there is no time for is decided as before. What the tuning file
 * (tuningFile, FCCL_TUNING_FILE) has already is not timed again; what is new is added to it, or a warning says why it
 * cannot be. All ranks pass the same calls, else it is fcclInvalidUsage on all. On CUDA it waits for all work on the
 * GPU first, and is fcclInvalidUsage while one of the GPU's streams is captured; CUDA ends that capture then. It takes
 * scratch memory for the largest call, and at least twice the last-level cache. A rank that dies, aborts or stays away
 * meanwhile is an error on the others, as in any call. In a group it is carried out by fcclGroupEnd. On CUDA, with a
 * GPU for each rank, the first call of a size is measured alike before it is made where nothing is known for such GPUs,
 * unless FCCL_AUTOTUNE=0 (docs/selection.md): it may take a quarter of a second and waits for the GPU. */
FCCL_API fcclResult_t fcclCommTune(fcclComm_t comm, const fcclQuery_t* calls, int n, int budgetMs);

/* ---- Groups --------------------------------------------------------------------------------------------------- */

/* For one thread that drives several ranks. Between the two, fcclCommInit, fcclCommSplit, fcclAllReduce,
 * fcclAllReduceFused, fcclCommTune, fcclCommWindowRegister and fcclCommWindowDeregister return at once, with what is
 * wrong by itself; they are carried out by fcclGroupEnd, which returns when all have been enqueued (HOST and
 * initialisation: have ended). So what they give (*comm, *newComm, *window) is NULL until then, and what they take
 * stays valid until then; a struct that they are given by pointer is copied. Calls of one communicator keep their
 * order. Groups nest; the outermost end counts. fcclGroupEnd gives the first error of the calls, in the order in which
 * they were made; where one was wrong by itself, nothing is carried out. A rank that initialises in a group is driven
 * by whichever thread calls it afterwards. */
FCCL_API fcclResult_t fcclGroupStart(void);
FCCL_API fcclResult_t fcclGroupEnd(void);

/* ---- User buffers --------------------------------------------------------------------------------------------- */

/* Memory that can be registered as a window, 64-byte aligned and zeroed. fcclMemAllocOn names the kind of device: HOST
 * memory, or memory of the calling thread's current GPU. fcclMemAlloc is fcclMemAllocOn with fcclDeviceAuto, which is
 * what a communicator with default settings takes: FCCL_DEVICE where it is set, else a GPU where there is one.
 * fcclMemFree takes both; memory that is still registered stays mapped until its windows are given back. Unlike
 * cudaFree it does not wait for work that uses the memory: synchronise first. */
FCCL_API fcclResult_t fcclMemAlloc(void** ptr, size_t size);
FCCL_API fcclResult_t fcclMemAllocOn(void** ptr, size_t size, fcclDeviceType_t deviceType);
FCCL_API fcclResult_t fcclMemFree(void* ptr);

/* Collective. Makes [buff, buff + size), which must lie inside one fcclMemAlloc block (of the communicator's kind of
 * device, and its GPU), readable and writable by all ranks; size is the same on all ranks. A collective whose buffers
 * lie in windows, at the same offsets on every rank, can move data without staging: strategy UB, which needs the input
 * in a window, and of a call without norm the output too. Either all ranks pass window memory or none does.
 * On CUDA AUTO takes UB only where it was measured to be faster. The input may be written, and the output read, by what
 * follows the call in the stream, as without windows; a graph that holds such a call may not be launched once the
 * window has been given back. */
FCCL_API fcclResult_t fcclCommWindowRegister(fcclComm_t comm, void* buff, size_t size, fcclWindow_t* window, int flags);

/* Collective over comm: no peer uses the window any more when it returns. On CUDA each rank synchronises the streams of
 * its calls first. */
FCCL_API fcclResult_t fcclCommWindowDeregister(fcclComm_t comm, fcclWindow_t window);

#ifdef __cplusplus
}
#endif

#endif /* FCCL_H_ */
