/*
 * Handles. A caller's handle is the address of an entry here; an address that is
 * none of ours is refused instead of followed. Entries live until the library is
 * unloaded, because callers keep handles past nvmlShutdown.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define BUCKETS 256

struct handle {
	enum kind kind;
	struct handle *next_by_name;
	struct handle *next_by_address;
	char name[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct handle *by_name[BUCKETS];
static struct handle *by_address[BUCKETS];

static unsigned int name_bucket(const char *s)
{
	unsigned int h = 5381;

	while (*s != '\0')
		h = h * 33 + (unsigned char)*s++;
	return h % BUCKETS;
}

static unsigned int address_bucket(const void *p)
{
	return (unsigned int)(((uintptr_t)p >> 5) % BUCKETS);
}

struct handle *sim_handle(enum kind kind, const char *name)
{
	unsigned int b = name_bucket(name);
	struct handle *h;

	pthread_mutex_lock(&lock);
	for (h = by_name[b]; h != NULL; h = h->next_by_name)
		if (h->kind == kind && strcmp(h->name, name) == 0)
			break;
	if (h == NULL && (h = malloc(sizeof *h + strlen(name) + 1)) != NULL) {
		unsigned int a = address_bucket(h);
		strcpy(h->name, name);
		h->kind = kind;
		h->next_by_name = by_name[b];
		by_name[b] = h;
		h->next_by_address = by_address[a];
		by_address[a] = h;
	}
	pthread_mutex_unlock(&lock);
	return h;
}

const char *sim_handle_name(const void *handle, enum kind kind)
{
	const struct handle *h;

	pthread_mutex_lock(&lock);
	for (h = by_address[address_bucket(handle)]; h != NULL; h = h->next_by_address)
		if (h == handle)
			break;
	pthread_mutex_unlock(&lock);
	return h != NULL && h->kind == kind ? h->name : NULL;
}

const char *sim_device_name(nvmlDevice_t device)
{
	const char *name = sim_handle_name(device.handle, KIND_GPU);

	return name != NULL ? name : sim_handle_name(device.handle, KIND_MIG);
}

void sim_handles_free(void)
{
	int i;

	pthread_mutex_lock(&lock);
	for (i = 0; i < BUCKETS; i++) {
		while (by_name[i] != NULL) {
			struct handle *h = by_name[i];
			by_name[i] = h->next_by_name;
			free(h);
		}
		by_address[i] = NULL;
	}
	pthread_mutex_unlock(&lock);
}
