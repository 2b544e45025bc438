/* A libcuda.so.1 for machines without a driver: cuDNN loads with it, makes plans and compiles code, but no kernel can
   be launched. The functions marked ABSENT return CUDA_ERROR_NO_DEVICE. */

static int something;

int cuGetErrorString(int error, const char **text) { *text = "no driver"; return 0; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 0; return 0; }

#define FOUND(name) int name(void **found) { *found = &something; return 0; }
FOUND(cuModuleLoadData) FOUND(cuModuleGetFunction)
FOUND(cuLibraryLoadData) FOUND(cuLibraryLoadFromFile) FOUND(cuLibraryGetKernel) FOUND(cuKernelGetFunction)

#define DONE(name) int name(void) { return 0; }
DONE(cuModuleUnload) DONE(cuLibraryUnload) DONE(cuKernelSetAttribute)
DONE(cuTensorMapEncodeIm2col) DONE(cuTensorMapEncodeTiled)
int cuKernelGetAttribute(int *value) { *value = 0; return 0; }
int cuOccupancyMaxPotentialClusterSize(int *size) { *size = 8; return 0; }

#define ABSENT(name) int name(void) { return 100; }
ABSENT(cuCtxGetCurrent) ABSENT(cuCtxGetLimit) ABSENT(cuCtxPopCurrent) ABSENT(cuCtxPushCurrent) ABSENT(cuDeviceGet)
ABSENT(cuLaunchCooperativeKernel) ABSENT(cuLaunchKernel) ABSENT(cuLaunchKernelEx) ABSENT(cuStreamGetCtx)
ABSENT(cuLinkAddData) ABSENT(cuLinkComplete) ABSENT(cuLinkCreate) ABSENT(cuLinkDestroy)
