/*
 * The part of NVML's interface this library offers: the types with their exact
 * layout. Compiled with -DNVML_HEADER='"nvml.h"' the real header takes their
 * place, and the compiler says where the two disagree; a test does that.
 */
#ifndef SIM_ABI_H
#define SIM_ABI_H

#ifdef NVML_HEADER

#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include NVML_HEADER

#else

typedef unsigned int nvmlReturn_t;

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_MEMORY = 20,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_GPU_NOT_FOUND = 28,
	NVML_ERROR_UNKNOWN = 999
};

#define NVML_INIT_FLAG_NO_GPUS 1
#define NVML_GPU_INSTANCE_PROFILE_CAPS_P2P 1

typedef struct { struct nvmlDevice_st *handle; } nvmlDevice_t;
typedef struct { struct nvmlGpuInstance_st *handle; } nvmlGpuInstance_t;
typedef struct { struct nvmlComputeInstance_st *handle; } nvmlComputeInstance_t;
typedef struct { struct nvmlEventSet_st *handle; } nvmlEventSet_t;

typedef unsigned int nvmlBrandType_t;
typedef unsigned int nvmlDeviceArchitecture_t;
typedef unsigned int nvmlEnableState_t;
typedef unsigned int nvmlComputeMode_t;
typedef unsigned int nvmlGpuVirtualizationMode_t;

typedef struct {
	char busIdLegacy[16];
	unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct {
	unsigned int version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
	char busId[32];
} nvmlPciInfoExt_v1_t;
typedef nvmlPciInfoExt_v1_t nvmlPciInfoExt_t;

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct {
	unsigned int version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;
typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;
typedef nvmlProcessInfo_v2_t nvmlProcessInfo_t;

typedef struct {
	unsigned int multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount;
	unsigned int sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
	unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct { unsigned int version, value; } nvmlDeviceAddressingMode_v1_t;
typedef nvmlDeviceAddressingMode_v1_t nvmlDeviceAddressingMode_t;

typedef struct {
	unsigned char clusterUuid[16];
	nvmlReturn_t status;
	unsigned int cliqueId;
	unsigned char state;
} nvmlGpuFabricInfo_t;
typedef struct {
	unsigned int version;
	unsigned char clusterUuid[16];
	nvmlReturn_t status;
	unsigned int cliqueId;
	unsigned char state;
	unsigned int healthMask;
} nvmlGpuFabricInfo_v2_t;
typedef struct {
	unsigned int version;
	unsigned char clusterUuid[16];
	nvmlReturn_t status;
	unsigned int cliqueId;
	unsigned char state;
	unsigned int healthMask;
	unsigned char healthSummary;
} nvmlGpuFabricInfo_v3_t;
typedef nvmlGpuFabricInfo_v3_t nvmlGpuFabricInfoV_t;

typedef struct { unsigned int start, size; } nvmlGpuInstancePlacement_t;
typedef struct { unsigned int start, size; } nvmlComputeInstancePlacement_t;

typedef struct {
	unsigned int id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount;
	unsigned int decoderCount, encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;
typedef struct {
	unsigned int version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount;
	unsigned int decoderCount, encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
	char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;
typedef struct {
	unsigned int version, id, sliceCount, instanceCount, multiprocessorCount, copyEngineCount;
	unsigned int decoderCount, encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
	char name[96];
	unsigned int capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;

typedef struct {
	nvmlDevice_t device;
	unsigned int id, profileId;
	nvmlGpuInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
	unsigned int id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount;
	unsigned int sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;
typedef struct {
	unsigned int version, id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount;
	unsigned int sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
	char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;
typedef struct {
	unsigned int version, id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount;
	unsigned int sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
	char name[96];
	unsigned int capabilities;
} nvmlComputeInstanceProfileInfo_v3_t;

typedef struct {
	nvmlDevice_t device;
	nvmlGpuInstance_t gpuInstance;
	unsigned int id, profileId;
	nvmlComputeInstancePlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
	nvmlDevice_t device;
	unsigned long long eventType, eventData;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

#endif /* NVML_HEADER */

/* The number NVML writes into the version field of a struct. */
#define SIM_VERSION(type, version) ((unsigned int)(sizeof(type) | ((version) << 24U)))

#endif
