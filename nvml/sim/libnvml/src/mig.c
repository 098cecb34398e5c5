/* The calls about MIG. */
#include <string.h>

#include "sim.h"

/* The UUID of a device, or why there is none. */
static nvmlReturn_t device_name(nvmlDevice_t device, const char **uuid)
{
	char session[128];
	nvmlReturn_t ret = sim_session(session, sizeof session);

	if (ret != NVML_SUCCESS)
		return ret;
	*uuid = sim_device_name(device);
	return *uuid != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t instance_name(const void *handle, enum kind kind, const char **name)
{
	char session[128];
	nvmlReturn_t ret = sim_session(session, sizeof session);

	if (ret != NVML_SUCCESS)
		return ret;
	*name = sim_handle_name(handle, kind);
	return *name != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/*
 * Who may change instances needs the capability node for that, which containers
 * of workloads have not.
 */
static nvmlReturn_t may_change(const char *uuid)
{
	nvmlReturn_t ret;

	if (sim_cap_visible(1))
		return NVML_SUCCESS;
	ret = sim_call(NULL, "DeviceGetMigMode", uuid, NULL);
	return ret != NVML_SUCCESS ? ret : NVML_ERROR_NO_PERMISSION;
}

/* The same for an instance; its handle has the GPU in it: "gi:GPU-…:1:2". */
static nvmlReturn_t may_change_instance(const char *name)
{
	char uuid[64] = "";
	const char *start = strchr(name, ':');

	if (start != NULL && strcspn(start + 1, ":") < sizeof uuid)
		strncat(uuid, start + 1, strcspn(start + 1, ":"));
	return may_change(uuid);
}

static nvmlReturn_t give_gi(const char *name, nvmlGpuInstance_t *gi)
{
	gi->handle = (struct nvmlGpuInstance_st *)sim_handle(KIND_GI, name);
	return gi->handle != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

static nvmlReturn_t give_ci(const char *name, nvmlComputeInstance_t *ci)
{
	ci->handle = (struct nvmlComputeInstance_st *)sim_handle(KIND_CI, name);
	return ci->handle != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

static nvmlReturn_t give_device(const char *uuid, enum kind kind, nvmlDevice_t *device)
{
	device->handle = (struct nvmlDevice_st *)sim_handle(kind, uuid);
	return device->handle != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
	struct reply r;
	const char *uuid;
	nvmlReturn_t ret;

	if (currentMode == NULL || pendingMode == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = device_name(device, &uuid);
	if (ret == NVML_SUCCESS)
		ret = sim_call(&r, "DeviceGetMigMode", uuid, NULL);
	if (ret == NVML_SUCCESS) {
		*currentMode = (unsigned int)sim_number(&r, 0);
		*pendingMode = (unsigned int)sim_number(&r, 1);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activationStatus)
{
	struct reply r;
	struct decimal d;
	const char *uuid;
	nvmlReturn_t ret;

	if (activationStatus == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = device_name(device, &uuid);
	if (ret == NVML_SUCCESS)
		ret = may_change(uuid);
	if (ret == NVML_SUCCESS)
		ret = sim_call(&r, "DeviceSetMigMode", uuid, sim_decimal(&d, mode), NULL);
	*activationStatus = ret;
	if (ret == NVML_SUCCESS) {
		*activationStatus = (nvmlReturn_t)sim_number(&r, 0);
		sim_reply_free(&r);
	}
	return ret;
}

/* A call about a device whose answer is one number. */
static nvmlReturn_t ask_number(nvmlDevice_t device, const char *name, const char *arg, unsigned int *out)
{
	struct reply r;
	const char *uuid;
	nvmlReturn_t ret;

	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = device_name(device, &uuid);
	if (ret == NVML_SUCCESS)
		ret = sim_call(&r, name, uuid, arg, NULL);
	if (ret == NVML_SUCCESS) {
		*out = (unsigned int)sim_number(&r, 0);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	return ask_number(device, "DeviceGetMaxMigDeviceCount", NULL, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	return ask_number(device, "DeviceGetGpuInstanceId", NULL, id);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	return ask_number(device, "DeviceGetComputeInstanceId", NULL, id);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profileId, unsigned int *count)
{
	struct decimal d;

	return ask_number(device, "DeviceGetGpuInstanceRemainingCapacity", sim_decimal(&d, profileId), count);
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
	const char *uuid;
	nvmlReturn_t ret;

	if (isMigDevice == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = device_name(device, &uuid);
	if (ret == NVML_SUCCESS)
		*isMigDevice = sim_handle_name(device.handle, KIND_MIG) != NULL;
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
	struct reply r;
	const char *uuid;
	size_t i;
	nvmlReturn_t ret;

	if (migDevice == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = device_name(device, &uuid);
	if (ret == NVML_SUCCESS)
		ret = sim_call(&r, "DeviceGetMigDeviceHandleByIndex", uuid, NULL);
	if (ret != NVML_SUCCESS)
		return ret;
	ret = NVML_ERROR_NOT_FOUND;
	for (i = 0; ret == NVML_ERROR_NOT_FOUND && i + 2 < r.fields; i += 3) {
		if (!sim_cap_visible((unsigned long)sim_number(&r, i + 1)) || !sim_cap_visible((unsigned long)sim_number(&r, i + 2)))
			continue;
		if (index-- == 0)
			ret = give_device(sim_text(&r, i), KIND_MIG, migDevice);
	}
	sim_reply_free(&r);
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device)
{
	struct reply r;
	const char *uuid;
	nvmlReturn_t ret;

	if (device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = device_name(migDevice, &uuid);
	if (ret == NVML_SUCCESS)
		ret = sim_call(&r, "DeviceGetDeviceHandleFromMigDeviceHandle", uuid, NULL);
	if (ret == NVML_SUCCESS) {
		ret = give_device(sim_text(&r, 0), KIND_GPU, device);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	struct reply r;
	const char *uuid;
	nvmlReturn_t ret;

	if (attributes == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = device_name(device, &uuid);
	if (ret == NVML_SUCCESS)
		ret = sim_call(&r, "DeviceGetAttributes", uuid, NULL);
	if (ret != NVML_SUCCESS)
		return ret;
	memset(attributes, 0, sizeof *attributes);
	attributes->multiprocessorCount = (unsigned int)sim_number(&r, 0);
	attributes->sharedCopyEngineCount = (unsigned int)sim_number(&r, 1);
	attributes->sharedDecoderCount = (unsigned int)sim_number(&r, 2);
	attributes->sharedEncoderCount = (unsigned int)sim_number(&r, 3);
	attributes->sharedJpegCount = (unsigned int)sim_number(&r, 4);
	attributes->sharedOfaCount = (unsigned int)sim_number(&r, 5);
	attributes->gpuInstanceSliceCount = (unsigned int)sim_number(&r, 6);
	attributes->computeInstanceSliceCount = (unsigned int)sim_number(&r, 7);
	attributes->memorySizeMB = sim_number(&r, 8);
	sim_reply_free(&r);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	return nvmlDeviceGetAttributes_v2(device, attributes);
}

/* Asks about a GPU instance profile by index or id. */
static nvmlReturn_t profile(struct reply *r, nvmlDevice_t device, const char *name, unsigned int key)
{
	struct decimal d;
	const char *uuid;
	nvmlReturn_t ret = device_name(device, &uuid);

	return ret == NVML_SUCCESS ? sim_call(r, name, uuid, sim_decimal(&d, key), NULL) : ret;
}

/* Fills the fields all forms of GPU instance profile info share. */
#define FILL_PROFILE(info, r)                                                \
	do {                                                                 \
		(info)->id = (unsigned int)sim_number((r), 0);                  \
		(info)->sliceCount = (unsigned int)sim_number((r), 1);          \
		(info)->instanceCount = (unsigned int)sim_number((r), 2);       \
		(info)->multiprocessorCount = (unsigned int)sim_number((r), 3); \
		(info)->copyEngineCount = (unsigned int)sim_number((r), 4);     \
		(info)->decoderCount = (unsigned int)sim_number((r), 5);        \
		(info)->encoderCount = (unsigned int)sim_number((r), 6);        \
		(info)->jpegCount = (unsigned int)sim_number((r), 7);           \
		(info)->ofaCount = (unsigned int)sim_number((r), 8);            \
		(info)->memorySizeMB = sim_number((r), 9);                      \
	} while (0)

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int index, nvmlGpuInstanceProfileInfo_t *info)
{
	struct reply r;
	nvmlReturn_t ret;

	if (info == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = profile(&r, device, "DeviceGetGpuInstanceProfileInfo", index);
	if (ret == NVML_SUCCESS) {
		FILL_PROFILE(info, &r);
		info->isP2pSupported = 0;
		sim_reply_free(&r);
	}
	return ret;
}

/* The versioned forms, by index or id: the caller's struct is v2 or v3. */
static nvmlReturn_t profile_v(nvmlDevice_t device, const char *name, unsigned int key, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	struct reply r;
	nvmlReturn_t ret;

	if (info == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != SIM_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2U) && info->version != SIM_VERSION(nvmlGpuInstanceProfileInfo_v3_t, 3U))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	ret = profile(&r, device, name, key);
	if (ret != NVML_SUCCESS)
		return ret;
	if (info->version == SIM_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2U)) {
		FILL_PROFILE(info, &r);
		info->isP2pSupported = 0;
		ret = sim_copy(info->name, sizeof info->name, sim_text(&r, 10));
	} else {
		nvmlGpuInstanceProfileInfo_v3_t *v3 = (nvmlGpuInstanceProfileInfo_v3_t *)(void *)info;
		FILL_PROFILE(v3, &r);
		v3->capabilities = 0;
		ret = sim_copy(v3->name, sizeof v3->name, sim_text(&r, 10));
	}
	sim_reply_free(&r);
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int index, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	return profile_v(device, "DeviceGetGpuInstanceProfileInfo", index, info);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int profileId, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	return profile_v(device, "DeviceGetGpuInstanceProfileInfoById", profileId, info);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profileId, nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
	struct reply r;
	unsigned int i, n;
	nvmlReturn_t ret;

	if (count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = profile(&r, device, "DeviceGetGpuInstancePossiblePlacements", profileId);
	if (ret != NVML_SUCCESS)
		return ret;
	n = (unsigned int)(r.fields / 2);
	if (placements != NULL && *count < n)
		ret = NVML_ERROR_INSUFFICIENT_SIZE;
	*count = n;
	for (i = 0; ret == NVML_SUCCESS && placements != NULL && i < n; i++) {
		placements[i].start = (unsigned int)sim_number(&r, 2 * i);
		placements[i].size = (unsigned int)sim_number(&r, 2 * i + 1);
	}
	sim_reply_free(&r);
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int profileId, nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
	return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profileId, placements, count);
}

/* Creates a GPU instance; placement may be NULL. */
static nvmlReturn_t create_gi(nvmlDevice_t device, unsigned int profileId, const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *gpuInstance)
{
	struct reply r;
	struct decimal id, start, size;
	const char *uuid;
	nvmlReturn_t ret;

	if (gpuInstance == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = device_name(device, &uuid);
	if (ret == NVML_SUCCESS)
		ret = may_change(uuid);
	if (ret != NVML_SUCCESS)
		return ret;
	sim_decimal(&id, profileId);
	if (placement == NULL)
		ret = sim_call(&r, "DeviceCreateGpuInstance", uuid, id.text, NULL);
	else
		ret = sim_call(&r, "DeviceCreateGpuInstance", uuid, id.text, sim_decimal(&start, placement->start), sim_decimal(&size, placement->size), NULL);
	if (ret == NVML_SUCCESS) {
		ret = give_gi(sim_text(&r, 0), gpuInstance);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profileId, nvmlGpuInstance_t *gpuInstance)
{
	return create_gi(device, profileId, NULL, gpuInstance);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId, const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *gpuInstance)
{
	return placement != NULL ? create_gi(device, profileId, placement, gpuInstance) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance)
{
	const char *name;
	nvmlReturn_t ret = instance_name(gpuInstance.handle, KIND_GI, &name);

	if (ret == NVML_SUCCESS)
		ret = may_change_instance(name);
	return ret == NVML_SUCCESS ? sim_call(NULL, "GpuInstanceDestroy", name, NULL) : ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId, nvmlGpuInstance_t *gpuInstances, unsigned int *count)
{
	struct reply r;
	size_t i;
	nvmlReturn_t ret;

	if (gpuInstances == NULL || count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = profile(&r, device, "DeviceGetGpuInstances", profileId);
	if (ret != NVML_SUCCESS)
		return ret;
	for (i = 0; ret == NVML_SUCCESS && i < r.fields; i++)
		ret = give_gi(sim_text(&r, i), &gpuInstances[i]);
	*count = (unsigned int)r.fields;
	sim_reply_free(&r);
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gpuInstance)
{
	struct reply r;
	nvmlReturn_t ret;

	if (gpuInstance == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = profile(&r, device, "DeviceGetGpuInstanceById", id);
	if (ret == NVML_SUCCESS) {
		ret = give_gi(sim_text(&r, 0), gpuInstance);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
	struct reply r;
	const char *name;
	nvmlReturn_t ret;

	if (info == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = instance_name(gpuInstance.handle, KIND_GI, &name);
	if (ret == NVML_SUCCESS)
		ret = sim_call(&r, "GpuInstanceGetInfo", name, NULL);
	if (ret != NVML_SUCCESS)
		return ret;
	ret = give_device(sim_text(&r, 0), KIND_GPU, &info->device);
	info->id = (unsigned int)sim_number(&r, 1);
	info->profileId = (unsigned int)sim_number(&r, 2);
	info->placement.start = (unsigned int)sim_number(&r, 3);
	info->placement.size = (unsigned int)sim_number(&r, 4);
	sim_reply_free(&r);
	return ret;
}

/* Asks about a compute instance profile. */
static nvmlReturn_t ci_profile(struct reply *r, nvmlGpuInstance_t gpuInstance, unsigned int index, unsigned int engProfile)
{
	struct decimal i, e;
	const char *name;
	nvmlReturn_t ret = instance_name(gpuInstance.handle, KIND_GI, &name);

	return ret == NVML_SUCCESS ? sim_call(r, "GpuInstanceGetComputeInstanceProfileInfo", name, sim_decimal(&i, index), sim_decimal(&e, engProfile), NULL) : ret;
}

/* Fills the fields all forms of compute instance profile info share. */
#define FILL_CI_PROFILE(info, r)                                               \
	do {                                                                   \
		(info)->id = (unsigned int)sim_number((r), 0);                    \
		(info)->sliceCount = (unsigned int)sim_number((r), 1);            \
		(info)->instanceCount = (unsigned int)sim_number((r), 2);         \
		(info)->multiprocessorCount = (unsigned int)sim_number((r), 3);   \
		(info)->sharedCopyEngineCount = (unsigned int)sim_number((r), 4); \
		(info)->sharedDecoderCount = (unsigned int)sim_number((r), 5);    \
		(info)->sharedEncoderCount = (unsigned int)sim_number((r), 6);    \
		(info)->sharedJpegCount = (unsigned int)sim_number((r), 7);       \
		(info)->sharedOfaCount = (unsigned int)sim_number((r), 8);        \
	} while (0)

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gpuInstance, unsigned int index, unsigned int engProfile, nvmlComputeInstanceProfileInfo_t *info)
{
	struct reply r;
	nvmlReturn_t ret;

	if (info == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = ci_profile(&r, gpuInstance, index, engProfile);
	if (ret == NVML_SUCCESS) {
		FILL_CI_PROFILE(info, &r);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gpuInstance, unsigned int index, unsigned int engProfile, nvmlComputeInstanceProfileInfo_v2_t *info)
{
	struct reply r;
	nvmlReturn_t ret;

	if (info == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != SIM_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2U) && info->version != SIM_VERSION(nvmlComputeInstanceProfileInfo_v3_t, 3U))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	ret = ci_profile(&r, gpuInstance, index, engProfile);
	if (ret != NVML_SUCCESS)
		return ret;
	/* v3 is v2 with a field more at its end. */
	FILL_CI_PROFILE(info, &r);
	ret = sim_copy(info->name, sizeof info->name, sim_text(&r, 9));
	if (info->version == SIM_VERSION(nvmlComputeInstanceProfileInfo_v3_t, 3U))
		((nvmlComputeInstanceProfileInfo_v3_t *)(void *)info)->capabilities = 0;
	sim_reply_free(&r);
	return ret;
}

/* A call about a compute instance profile of a GPU instance. */
static nvmlReturn_t gi_call(struct reply *r, nvmlGpuInstance_t gpuInstance, const char *call, unsigned int key)
{
	struct decimal d;
	const char *name;
	nvmlReturn_t ret = instance_name(gpuInstance.handle, KIND_GI, &name);

	return ret == NVML_SUCCESS ? sim_call(r, call, name, sim_decimal(&d, key), NULL) : ret;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t gpuInstance, unsigned int profileId, unsigned int *count)
{
	struct reply r;
	nvmlReturn_t ret;

	if (count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = gi_call(&r, gpuInstance, "GpuInstanceGetComputeInstanceRemainingCapacity", profileId);
	if (ret == NVML_SUCCESS) {
		*count = (unsigned int)sim_number(&r, 0);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t gpuInstance, unsigned int profileId, nvmlComputeInstancePlacement_t *placements, unsigned int *count)
{
	struct reply r;
	unsigned int i, n;
	nvmlReturn_t ret;

	if (count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = gi_call(&r, gpuInstance, "GpuInstanceGetComputeInstancePossiblePlacements", profileId);
	if (ret != NVML_SUCCESS)
		return ret;
	n = (unsigned int)(r.fields / 2);
	if (placements != NULL && *count < n)
		ret = NVML_ERROR_INSUFFICIENT_SIZE;
	*count = n;
	for (i = 0; ret == NVML_SUCCESS && placements != NULL && i < n; i++) {
		placements[i].start = (unsigned int)sim_number(&r, 2 * i);
		placements[i].size = (unsigned int)sim_number(&r, 2 * i + 1);
	}
	sim_reply_free(&r);
	return ret;
}

/* Creates a compute instance; placement may be NULL. */
static nvmlReturn_t create_ci(nvmlGpuInstance_t gpuInstance, unsigned int profileId, const nvmlComputeInstancePlacement_t *placement, nvmlComputeInstance_t *computeInstance)
{
	struct reply r;
	struct decimal id, start, size;
	const char *name;
	nvmlReturn_t ret;

	if (computeInstance == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = instance_name(gpuInstance.handle, KIND_GI, &name);
	if (ret == NVML_SUCCESS)
		ret = may_change_instance(name);
	if (ret != NVML_SUCCESS)
		return ret;
	sim_decimal(&id, profileId);
	if (placement == NULL)
		ret = sim_call(&r, "GpuInstanceCreateComputeInstance", name, id.text, NULL);
	else
		ret = sim_call(&r, "GpuInstanceCreateComputeInstance", name, id.text, sim_decimal(&start, placement->start), sim_decimal(&size, placement->size), NULL);
	if (ret == NVML_SUCCESS) {
		ret = give_ci(sim_text(&r, 0), computeInstance);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance, unsigned int profileId, nvmlComputeInstance_t *computeInstance)
{
	return create_ci(gpuInstance, profileId, NULL, computeInstance);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t gpuInstance, unsigned int profileId, const nvmlComputeInstancePlacement_t *placement, nvmlComputeInstance_t *computeInstance)
{
	return placement != NULL ? create_ci(gpuInstance, profileId, placement, computeInstance) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance)
{
	const char *name;
	nvmlReturn_t ret = instance_name(computeInstance.handle, KIND_CI, &name);

	if (ret == NVML_SUCCESS)
		ret = may_change_instance(name);
	return ret == NVML_SUCCESS ? sim_call(NULL, "ComputeInstanceDestroy", name, NULL) : ret;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance, unsigned int profileId, nvmlComputeInstance_t *computeInstances, unsigned int *count)
{
	struct reply r;
	size_t i;
	nvmlReturn_t ret;

	if (computeInstances == NULL || count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = gi_call(&r, gpuInstance, "GpuInstanceGetComputeInstances", profileId);
	if (ret != NVML_SUCCESS)
		return ret;
	for (i = 0; ret == NVML_SUCCESS && i < r.fields; i++)
		ret = give_ci(sim_text(&r, i), &computeInstances[i]);
	*count = (unsigned int)r.fields;
	sim_reply_free(&r);
	return ret;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned int id, nvmlComputeInstance_t *computeInstance)
{
	struct reply r;
	nvmlReturn_t ret;

	if (computeInstance == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = gi_call(&r, gpuInstance, "GpuInstanceGetComputeInstanceById", id);
	if (ret == NVML_SUCCESS) {
		ret = give_ci(sim_text(&r, 0), computeInstance);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
	struct reply r;
	const char *name;
	nvmlReturn_t ret;

	if (info == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = instance_name(computeInstance.handle, KIND_CI, &name);
	if (ret == NVML_SUCCESS)
		ret = sim_call(&r, "ComputeInstanceGetInfo", name, NULL);
	if (ret != NVML_SUCCESS)
		return ret;
	ret = give_device(sim_text(&r, 0), KIND_GPU, &info->device);
	if (ret == NVML_SUCCESS)
		ret = give_gi(sim_text(&r, 1), &info->gpuInstance);
	info->id = (unsigned int)sim_number(&r, 2);
	info->profileId = (unsigned int)sim_number(&r, 3);
	info->placement.start = (unsigned int)sim_number(&r, 4);
	info->placement.size = (unsigned int)sim_number(&r, 5);
	sim_reply_free(&r);
	return ret;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
	return nvmlComputeInstanceGetInfo_v2(computeInstance, info);
}
