/*
 * Event sets. A set is kept here and not in the driver: what it watches, and the
 * number of the last event it has seen, so that it survives a restart of the
 * simulator and leaves nothing behind when its owner dies.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define MAX_WATCHES 64

struct set {
	const void *handle;
	unsigned long long seq;
	size_t watches;
	struct { const char *uuid; unsigned long long mask; } watch[MAX_WATCHES];
	struct set *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct set *sets;
static unsigned long long made;

/* Finds a set. The caller holds the lock. */
static struct set *find(nvmlEventSet_t set)
{
	struct set *s;

	for (s = sets; s != NULL && s->handle != set.handle; s = s->next)
		;
	return s;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	struct reply r;
	struct set *s;
	char name[32];
	nvmlReturn_t ret;

	if (set == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = sim_call(&r, "EventSetCreate", NULL);
	if (ret != NVML_SUCCESS)
		return ret;
	s = calloc(1, sizeof *s);
	if (s != NULL) {
		s->seq = sim_number(&r, 0);
		pthread_mutex_lock(&lock);
		snprintf(name, sizeof name, "%llu", made++);
		s->handle = sim_handle(KIND_EVENTS, name);
		if (s->handle != NULL) {
			s->next = sets;
			sets = s;
		}
		pthread_mutex_unlock(&lock);
	}
	sim_reply_free(&r);
	if (s == NULL || s->handle == NULL) {
		free(s);
		return NVML_ERROR_MEMORY;
	}
	set->handle = (struct nvmlEventSet_st *)(void *)(size_t)s->handle;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes, nvmlEventSet_t set)
{
	const char *uuid = sim_device_name(device);
	struct decimal mask;
	struct set *s;
	size_t i;
	nvmlReturn_t ret;

	if (uuid == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = sim_call(NULL, "DeviceRegisterEvents", uuid, sim_decimal(&mask, eventTypes), NULL);
	if (ret != NVML_SUCCESS)
		return ret;
	pthread_mutex_lock(&lock);
	s = find(set);
	if (s == NULL) {
		ret = NVML_ERROR_INVALID_ARGUMENT;
	} else {
		for (i = 0; i < s->watches && s->watch[i].uuid != uuid; i++)
			;
		if (i == MAX_WATCHES) {
			ret = NVML_ERROR_MEMORY;
		} else {
			s->watch[i].uuid = uuid; /* handles' names are never moved */
			s->watch[i].mask |= eventTypes;
			s->watches += i == s->watches;
		}
	}
	pthread_mutex_unlock(&lock);
	return ret;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
	const char *args[2 + 2 * MAX_WATCHES + 1];
	struct decimal seq, timeout, mask[MAX_WATCHES];
	char session[128];
	struct reply r;
	struct set *s;
	size_t i, n = 0;
	nvmlReturn_t ret;

	if (data == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = sim_session(session, sizeof session);
	if (ret != NVML_SUCCESS)
		return ret;
	pthread_mutex_lock(&lock);
	s = find(set);
	if (s == NULL) {
		pthread_mutex_unlock(&lock);
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	args[n++] = sim_decimal(&seq, s->seq);
	args[n++] = sim_decimal(&timeout, timeoutms);
	for (i = 0; i < s->watches; i++) {
		args[n++] = s->watch[i].uuid;
		args[n++] = sim_decimal(&mask[i], s->watch[i].mask);
	}
	args[n] = NULL;
	pthread_mutex_unlock(&lock);
	ret = sim_call_list(&r, session, "EventSetWait", args);
	if (ret != NVML_SUCCESS)
		return ret;
	pthread_mutex_lock(&lock);
	s = find(set); /* it may have been freed meanwhile */
	if (s != NULL && sim_number(&r, 0) > s->seq)
		s->seq = sim_number(&r, 0);
	pthread_mutex_unlock(&lock);
	memset(data, 0, sizeof *data);
	data->device.handle = (struct nvmlDevice_st *)sim_handle(KIND_GPU, sim_text(&r, 1));
	data->eventType = sim_number(&r, 2);
	data->eventData = sim_number(&r, 3);
	data->gpuInstanceId = (unsigned int)sim_number(&r, 4);
	data->computeInstanceId = (unsigned int)sim_number(&r, 5);
	sim_reply_free(&r);
	return data->device.handle != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

/* The first version of the call, which does not tell MIG devices apart. */
EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
	nvmlReturn_t ret = nvmlEventSetWait_v2(set, data, timeoutms);

	if (ret == NVML_SUCCESS)
		data->gpuInstanceId = data->computeInstanceId = 0xffffffffU;
	return ret;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	struct set **at, *s = NULL;

	pthread_mutex_lock(&lock);
	for (at = &sets; *at != NULL; at = &(*at)->next) {
		if ((*at)->handle == set.handle) {
			s = *at;
			*at = s->next;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	free(s);
	return s != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
