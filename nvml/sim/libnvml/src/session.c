/* nvmlInit and nvmlShutdown: what one user of the library has been told. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define MAX_GPUS 32
#define UUID_SIZE 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;
static char session[128];
static char gpus[MAX_GPUS][UUID_SIZE]; /* visible ones, in the driver's order */
static unsigned int gpu_count;

/* Asks the driver who it is and what there is. */
static nvmlReturn_t begin(unsigned int flags)
{
	static const char *const none[] = { NULL };
	struct reply hello, list;
	char found[MAX_GPUS][UUID_SIZE];
	unsigned int count = 0;
	size_t i;
	nvmlReturn_t ret = sim_call_list(&hello, "", "Init", none);

	if (ret != NVML_SUCCESS)
		return ret;
	ret = sim_call_list(&list, sim_text(&hello, 0), "DeviceGetCount", none);
	if (ret != NVML_SUCCESS) {
		sim_reply_free(&hello);
		return ret;
	}
	for (i = 0; i + 1 < list.fields && count < MAX_GPUS; i += 2) {
		if (strlen(sim_text(&list, i)) < UUID_SIZE && sim_gpu_visible((unsigned long)sim_number(&list, i + 1)))
			strcpy(found[count++], sim_text(&list, i));
	}
	sim_reply_free(&list);
	if (count == 0 && (flags & NVML_INIT_FLAG_NO_GPUS) == 0) {
		sim_reply_free(&hello);
		return NVML_ERROR_GPU_NOT_FOUND;
	}
	pthread_mutex_lock(&lock);
	users++;
	session[0] = '\0';
	strncat(session, sim_text(&hello, 0), sizeof session - 1);
	memcpy(gpus, found, sizeof gpus);
	gpu_count = count;
	pthread_mutex_unlock(&lock);
	sim_reply_free(&hello);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	return begin(flags);
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	return begin(0);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
	return begin(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
	unsigned int left;

	pthread_mutex_lock(&lock);
	if (users == 0) {
		pthread_mutex_unlock(&lock);
		return NVML_ERROR_UNINITIALIZED;
	}
	left = --users;
	pthread_mutex_unlock(&lock);
	if (left == 0)
		sim_disconnect();
	return NVML_SUCCESS;
}

nvmlReturn_t sim_session(char *text, size_t size)
{
	nvmlReturn_t ret = NVML_SUCCESS;

	pthread_mutex_lock(&lock);
	if (users == 0)
		ret = NVML_ERROR_UNINITIALIZED;
	text[0] = '\0';
	strncat(text, session, size - 1);
	pthread_mutex_unlock(&lock);
	return ret;
}

int sim_session_gpu(unsigned int index, char *uuid, size_t size)
{
	int ok = 0;

	pthread_mutex_lock(&lock);
	if (index < gpu_count && strlen(gpus[index]) < size) {
		strcpy(uuid, gpus[index]);
		ok = 1;
	}
	pthread_mutex_unlock(&lock);
	return ok;
}

int sim_session_index(const char *uuid)
{
	unsigned int i;
	int found = -1;

	pthread_mutex_lock(&lock);
	for (i = 0; i < gpu_count; i++)
		if (strcmp(gpus[i], uuid) == 0)
			found = (int)i;
	pthread_mutex_unlock(&lock);
	return found;
}

nvmlReturn_t sim_copy(char *to, unsigned int length, const char *text)
{
	if (to == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(to, text);
	return NVML_SUCCESS;
}

/* A call about the system whose answer is one text. */
static nvmlReturn_t system_text(const char *name, char *to, unsigned int length)
{
	struct reply r;
	nvmlReturn_t ret;

	if (to == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = sim_call(&r, name, NULL);
	if (ret == NVML_SUCCESS) {
		ret = sim_copy(to, length, sim_text(&r, 0));
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	return system_text("SystemGetDriverVersion", version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	return system_text("SystemGetNVMLVersion", version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	struct reply r;
	nvmlReturn_t ret;

	if (version == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = sim_call(&r, "SystemGetCudaDriverVersion", NULL);
	if (ret == NVML_SUCCESS) {
		*version = (int)sim_number(&r, 0);
		sim_reply_free(&r);
	}
	return ret;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	static const struct { unsigned int code; const char *text; } names[] = {
		{ 0, "Success" },
		{ 1, "Uninitialized" },
		{ 2, "Invalid Argument" },
		{ 3, "Not Supported" },
		{ 4, "Insufficient Permissions" },
		{ 5, "Already Initialized" },
		{ 6, "Not Found" },
		{ 7, "Insufficient Size" },
		{ 8, "Insufficient External Power" },
		{ 9, "Driver Not Loaded" },
		{ 10, "Timeout" },
		{ 11, "Interrupt Request Issue" },
		{ 12, "NVML Shared Library Not Found" },
		{ 13, "Function Not Found" },
		{ 14, "Corrupted infoROM" },
		{ 15, "GPU is lost" },
		{ 16, "GPU requires restart" },
		{ 17, "The operating system has blocked the request." },
		{ 18, "RM has detected an NVML/RM version mismatch." },
		{ 19, "In use by another client" },
		{ 20, "Insufficient Memory" },
		{ 21, "No data" },
		{ 22, "Unsupported ECC mode" },
		{ 23, "Insufficient Resources" },
		{ 24, "Requested frequency is not supported" },
		{ 25, "Argument version mismatch" },
		{ 26, "Deprecated" },
		{ 27, "System not ready" },
		{ 28, "GPU not found" },
		{ 29, "Invalid state" },
		{ 30, "Reset type not supported" },
	};
	size_t i;

	for (i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].code == (unsigned int)result)
			return names[i].text;
	return "Unknown Error";
}
