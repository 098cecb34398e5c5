/* The calls about GPUs that are not about MIG. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

/* A call about one device. */
static nvmlReturn_t ask(struct reply *r, nvmlDevice_t device, const char *name)
{
	const char *uuid = sim_device_name(device);
	struct reply none;
	nvmlReturn_t ret;

	if (uuid == NULL) {
		/* Uninitialized comes before a bad handle. */
		char session[128];
		ret = sim_session(session, sizeof session);
		return ret != NVML_SUCCESS ? ret : NVML_ERROR_INVALID_ARGUMENT;
	}
	ret = sim_call(r != NULL ? r : &none, name, uuid, NULL);
	if (ret == NVML_SUCCESS && r == NULL)
		sim_reply_free(&none);
	return ret;
}

/* A call about one device whose answer is one number. */
static nvmlReturn_t ask_number(nvmlDevice_t device, const char *name, unsigned int *out)
{
	struct reply r;
	nvmlReturn_t ret;

	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = ask(&r, device, name);
	if (ret == NVML_SUCCESS) {
		*out = (unsigned int)sim_number(&r, 0);
		sim_reply_free(&r);
	}
	return ret;
}

/* A call about one device whose answer is one text. */
static nvmlReturn_t ask_text(nvmlDevice_t device, const char *name, char *to, unsigned int length)
{
	struct reply r;
	nvmlReturn_t ret;

	if (to == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = ask(&r, device, name);
	if (ret == NVML_SUCCESS) {
		ret = sim_copy(to, length, sim_text(&r, 0));
		sim_reply_free(&r);
	}
	return ret;
}

/* A call about one device that changes a setting. */
static nvmlReturn_t set_number(nvmlDevice_t device, const char *name, unsigned int value)
{
	const char *uuid = sim_device_name(device);
	struct decimal d;

	if (uuid == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	return sim_call(NULL, name, uuid, sim_decimal(&d, value), NULL);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
	char uuid[64];
	unsigned int n = 0;
	nvmlReturn_t ret;

	if (deviceCount == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	/* The number is that of the session; the driver may still say no. */
	ret = sim_call(NULL, "DeviceGetCount", NULL);
	if (ret != NVML_SUCCESS)
		return ret;
	while (sim_session_gpu(n, uuid, sizeof uuid))
		n++;
	*deviceCount = n;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount)
{
	return nvmlDeviceGetCount_v2(deviceCount);
}

/* Hands out a GPU's handle. */
static nvmlReturn_t give(const char *uuid, enum kind kind, nvmlDevice_t *device)
{
	device->handle = (struct nvmlDevice_st *)sim_handle(kind, uuid);
	return device->handle != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	char uuid[64], session[128];
	nvmlReturn_t ret;

	if (device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = sim_session(session, sizeof session);
	if (ret != NVML_SUCCESS)
		return ret;
	if (!sim_session_gpu(index, uuid, sizeof uuid))
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = sim_call(NULL, "DeviceGetHandleByIndex", uuid, NULL);
	if (ret == NVML_ERROR_NOT_FOUND) /* it has been removed since nvmlInit */
		ret = NVML_ERROR_GPU_IS_LOST;
	return ret == NVML_SUCCESS ? give(uuid, KIND_GPU, device) : ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	struct reply r;
	nvmlReturn_t ret;

	if (uuid == NULL || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = sim_call(&r, "DeviceGetHandleByUUID", uuid, NULL);
	if (ret != NVML_SUCCESS)
		return ret;
	if (sim_session_index(sim_text(&r, 0)) < 0)
		ret = NVML_ERROR_NOT_FOUND;
	else if (r.fields < 3)
		ret = give(uuid, KIND_GPU, device);
	else if (sim_cap_visible((unsigned long)sim_number(&r, 1)) && sim_cap_visible((unsigned long)sim_number(&r, 2)))
		ret = give(uuid, KIND_MIG, device);
	else
		ret = NVML_ERROR_NOT_FOUND;
	sim_reply_free(&r);
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
	struct reply r;
	nvmlReturn_t ret;

	if (pciBusId == NULL || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = sim_call(&r, "DeviceGetHandleByPciBusId", pciBusId, NULL);
	if (ret != NVML_SUCCESS)
		return ret;
	ret = sim_session_index(sim_text(&r, 0)) >= 0 ? give(sim_text(&r, 0), KIND_GPU, device) : NVML_ERROR_NOT_FOUND;
	sim_reply_free(&r);
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(pciBusId, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	return ask_text(device, "DeviceGetUUID", uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	return ask_text(device, "DeviceGetName", name, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	return ask_text(device, "DeviceGetSerial", serial, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minorNumber)
{
	return ask_number(device, "DeviceGetMinorNumber", minorNumber);
}

EXPORT nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned int *moduleId)
{
	return ask_number(device, "DeviceGetModuleId", moduleId);
}

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *type)
{
	unsigned int n = 0;
	nvmlReturn_t ret = type != NULL ? ask_number(device, "DeviceGetBrand", &n) : NVML_ERROR_INVALID_ARGUMENT;

	if (ret == NVML_SUCCESS)
		*type = (nvmlBrandType_t)n;
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *arch)
{
	return ask_number(device, "DeviceGetArchitecture", arch);
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	struct reply r;
	nvmlReturn_t ret;

	if (major == NULL || minor == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = ask(&r, device, "DeviceGetCudaComputeCapability");
	if (ret == NVML_SUCCESS) {
		*major = (int)sim_number(&r, 0);
		*minor = (int)sim_number(&r, 1);
		sim_reply_free(&r);
	}
	return ret;
}

/* A MIG device's index is its rank among those this process sees. */
static nvmlReturn_t mig_index(const char *uuid, unsigned int *index)
{
	struct reply parent, list;
	size_t i;
	nvmlReturn_t ret = sim_call(&parent, "DeviceGetDeviceHandleFromMigDeviceHandle", uuid, NULL);

	if (ret != NVML_SUCCESS)
		return ret;
	ret = sim_call(&list, "DeviceGetMigDeviceHandleByIndex", sim_text(&parent, 0), NULL);
	sim_reply_free(&parent);
	if (ret != NVML_SUCCESS)
		return ret;
	*index = 0;
	ret = NVML_ERROR_NOT_FOUND;
	for (i = 0; i + 2 < list.fields; i += 3) {
		if (strcmp(sim_text(&list, i), uuid) == 0) {
			ret = NVML_SUCCESS;
			break;
		}
		if (sim_cap_visible((unsigned long)sim_number(&list, i + 1)) && sim_cap_visible((unsigned long)sim_number(&list, i + 2)))
			(*index)++;
	}
	sim_reply_free(&list);
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	const char *uuid = sim_device_name(device);
	nvmlReturn_t ret;
	int i;

	if (index == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = ask(NULL, device, "DeviceGetIndex");
	if (ret != NVML_SUCCESS)
		return ret;
	if (sim_handle_name(device.handle, KIND_MIG) != NULL)
		return mig_index(uuid, index);
	i = sim_session_index(uuid);
	if (i < 0)
		return NVML_ERROR_NOT_FOUND;
	*index = (unsigned int)i;
	return NVML_SUCCESS;
}

/* Everything the three forms of PCI info hold. */
struct pci { unsigned int domain, bus, device, id, subsystem, class, subclass; };

static nvmlReturn_t get_pci(nvmlDevice_t device, struct pci *pci)
{
	struct reply r;
	nvmlReturn_t ret = ask(&r, device, "DeviceGetPciInfo");

	if (ret == NVML_SUCCESS) {
		pci->domain = (unsigned int)sim_number(&r, 0);
		pci->bus = (unsigned int)sim_number(&r, 1);
		pci->device = (unsigned int)sim_number(&r, 2);
		pci->id = (unsigned int)sim_number(&r, 3);
		pci->subsystem = (unsigned int)sim_number(&r, 4);
		pci->class = (unsigned int)sim_number(&r, 5);
		pci->subclass = (unsigned int)sim_number(&r, 6);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	struct pci p;
	nvmlReturn_t ret;

	if (pci == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = get_pci(device, &p);
	if (ret != NVML_SUCCESS)
		return ret;
	memset(pci, 0, sizeof *pci);
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", p.domain & 0xffff, p.bus & 0xff, p.device & 0x1f);
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", p.domain, p.bus, p.device);
	pci->domain = p.domain;
	pci->bus = p.bus;
	pci->device = p.device;
	pci->pciDeviceId = p.id;
	pci->pciSubSystemId = p.subsystem;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
	struct pci p;
	nvmlReturn_t ret;

	if (pci == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (pci->version != SIM_VERSION(nvmlPciInfoExt_v1_t, 1U))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	ret = get_pci(device, &p);
	if (ret != NVML_SUCCESS)
		return ret;
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", p.domain, p.bus, p.device);
	pci->domain = p.domain;
	pci->bus = p.bus;
	pci->device = p.device;
	pci->pciDeviceId = p.id;
	pci->pciSubSystemId = p.subsystem;
	pci->baseClass = p.class;
	pci->subClass = p.subclass;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct reply r;
	nvmlReturn_t ret;

	if (memory == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = ask(&r, device, "DeviceGetMemoryInfo");
	if (ret == NVML_SUCCESS) {
		memory->total = sim_number(&r, 0);
		memory->free = sim_number(&r, 2);
		memory->used = memory->total - memory->free; /* with what is reserved */
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct reply r;
	nvmlReturn_t ret;

	if (memory == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memory->version != SIM_VERSION(nvmlMemory_v2_t, 2U))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	ret = ask(&r, device, "DeviceGetMemoryInfo");
	if (ret == NVML_SUCCESS) {
		memory->total = sim_number(&r, 0);
		memory->reserved = sim_number(&r, 1);
		memory->free = sim_number(&r, 2);
		memory->used = sim_number(&r, 3);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
	if (mode == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (mode->version != SIM_VERSION(nvmlDeviceAddressingMode_v1_t, 1U))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	return ask_number(device, "DeviceGetAddressingMode", &mode->value);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
	unsigned int n = 0;
	nvmlReturn_t ret = mode != NULL ? ask_number(device, "DeviceGetComputeMode", &n) : NVML_ERROR_INVALID_ARGUMENT;

	if (ret == NVML_SUCCESS)
		*mode = (nvmlComputeMode_t)n;
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
	return set_number(device, "DeviceSetComputeMode", (unsigned int)mode);
}

/* A setting that is on or off. */
static nvmlReturn_t ask_switch(nvmlDevice_t device, const char *name, nvmlEnableState_t *on)
{
	unsigned int n = 0;
	nvmlReturn_t ret = on != NULL ? ask_number(device, name, &n) : NVML_ERROR_INVALID_ARGUMENT;

	if (ret == NVML_SUCCESS)
		*on = (nvmlEnableState_t)n;
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	return ask_switch(device, "DeviceGetPersistenceMode", mode);
}

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
	return set_number(device, "DeviceSetPersistenceMode", (unsigned int)mode);
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *display)
{
	return ask_switch(device, "DeviceGetDisplayMode", display);
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *isActive)
{
	return ask_switch(device, "DeviceGetDisplayActive", isActive);
}

EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *pVirtualMode)
{
	unsigned int n = 0;
	nvmlReturn_t ret = pVirtualMode != NULL ? ask_number(device, "DeviceGetVirtualizationMode", &n) : NVML_ERROR_INVALID_ARGUMENT;

	if (ret == NVML_SUCCESS)
		*pVirtualMode = (nvmlGpuVirtualizationMode_t)n;
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_t *infos)
{
	struct reply r;
	unsigned int i, n, room;
	nvmlReturn_t ret;

	if (infoCount == NULL || (*infoCount > 0 && infos == NULL))
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = ask(&r, device, "DeviceGetComputeRunningProcesses");
	if (ret != NVML_SUCCESS)
		return ret;
	n = (unsigned int)(r.fields / 4);
	room = *infoCount;
	*infoCount = n;
	if (n > room)
		ret = NVML_ERROR_INSUFFICIENT_SIZE;
	for (i = 0; ret == NVML_SUCCESS && i < n; i++) {
		infos[i].pid = (unsigned int)sim_number(&r, 4 * i);
		infos[i].usedGpuMemory = sim_number(&r, 4 * i + 1);
		infos[i].gpuInstanceId = (unsigned int)sim_number(&r, 4 * i + 2);
		infos[i].computeInstanceId = (unsigned int)sim_number(&r, 4 * i + 3);
	}
	sim_reply_free(&r);
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_v2_t *infos)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(device, infoCount, infos);
}

/* Reads a UUID of 32 hexadecimal digits. */
static void read_hex(unsigned char uuid[16], const char *hex)
{
	static const char digits[] = "0123456789abcdef";
	size_t at;

	memset(uuid, 0, 16);
	for (at = 0; at < 32 && hex[at] != '\0'; at++) {
		const char *d = strchr(digits, hex[at]);
		uuid[at / 2] = (unsigned char)(uuid[at / 2] << 4 | (d != NULL ? d - digits : 0));
	}
}

/* Fills the fields all forms of fabric info share. */
#define FILL_FABRIC(info, r)                                                        \
	do {                                                                        \
		read_hex((info)->clusterUuid, sim_text((r), 0));                    \
		(info)->status = (nvmlReturn_t)sim_number((r), 1);                  \
		(info)->cliqueId = (unsigned int)sim_number((r), 2);                \
		(info)->state = (unsigned char)sim_number((r), 3);                  \
	} while (0)

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *gpuFabricInfo)
{
	struct reply r;
	nvmlReturn_t ret;

	if (gpuFabricInfo == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = ask(&r, device, "DeviceGetGpuFabricInfo");
	if (ret == NVML_SUCCESS) {
		FILL_FABRIC(gpuFabricInfo, &r);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *gpuFabricInfo)
{
	struct reply r;
	unsigned int version;
	nvmlReturn_t ret;

	if (gpuFabricInfo == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	version = gpuFabricInfo->version;
	if (version != SIM_VERSION(nvmlGpuFabricInfo_v3_t, 3U) && version != SIM_VERSION(nvmlGpuFabricInfo_v2_t, 2U))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	ret = ask(&r, device, "DeviceGetGpuFabricInfo");
	if (ret == NVML_SUCCESS) {
		FILL_FABRIC(gpuFabricInfo, &r);
		gpuFabricInfo->healthMask = (unsigned int)sim_number(&r, 4);
		if (version == SIM_VERSION(nvmlGpuFabricInfo_v3_t, 3U))
			gpuFabricInfo->healthSummary = (unsigned char)sim_number(&r, 5);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *eventTypes)
{
	struct reply r;
	nvmlReturn_t ret;

	if (eventTypes == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = ask(&r, device, "DeviceGetSupportedEventTypes");
	if (ret == NVML_SUCCESS) {
		*eventTypes = sim_number(&r, 0);
		sim_reply_free(&r);
	}
	return ret;
}
