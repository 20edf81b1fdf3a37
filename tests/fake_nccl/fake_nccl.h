// A stand-in for libnccl.so.2 on machines without GPUs: ranks are threads of one process, buffers ordinary memory, and
// a call has ended when it returns. It counts its calls, can pretend to be another version, and can be told to fail.
//   FAKE_NCCL_VERSION in the environment: the version when it is loaded, as ncclGetVersion gives it; else 22803
#pragma once

extern "C" {
void fakeNcclReset(void);  // counts, failures; the version as loaded
void fakeNcclSetVersion(int version);
// The n-th call (from 1, counted from here) of `function` by any rank gives `code`; nothing else of it happens.
void fakeNcclFail(const char* function, int n, int code);
// What ncclCommGetAsyncError gives for every communicator.
void fakeNcclSetAsyncError(int code);
// ncclCommWindowRegister succeeds and gives no window, as NCCL does where it has none.
void fakeNcclRefuseWindows(int refuse);
int fakeNcclCount(const char* function);
int fakeNcclLiveComms(void);
int fakeNcclLiveBytes(void);  // of ncclMemAlloc
int fakeNcclLiveWindows(void);
}
