/*
 * Where this library is, and what the process may use. As with the real driver
 * a device is there when its node can be opened. There is no hardware behind
 * the node, so "no such device" (ENXIO, ENODEV) from the kernel means that the
 * device cgroup and the file mode let us through. EPERM is the cgroup's no.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "sim.h"

#define MOUNT_NODEV 4 /* statfs f_flags */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *root;

/* Finds the object this very function is in. */
static int look(struct dl_phdr_info *info, size_t size, void *found)
{
	ElfW(Addr) here = (ElfW(Addr))&look;
	int i;

	(void)size;
	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		ElfW(Addr) start = info->dlpi_addr + p->p_vaddr;
		if (p->p_type == PT_LOAD && here >= start && here < start + p->p_memsz) {
			*(char **)found = strdup(info->dlpi_name);
			return 1;
		}
	}
	return 0;
}

/* The driver root above the file of the library. */
static char *find_root(void)
{
	static const char *const dirs[] = {
		"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
		"/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/lib",
	};
	char *path = NULL, *slash;
	size_t i;

	dl_iterate_phdr(look, &path);
	if (path == NULL)
		return NULL;
	slash = strrchr(path, '/');
	if (slash != NULL) {
		*slash = '\0';
		for (i = 0; i < sizeof dirs / sizeof *dirs; i++) {
			size_t have = strlen(path), want = strlen(dirs[i]);
			if (have >= want && strcmp(path + have - want, dirs[i]) == 0) {
				path[have - want] = '\0';
				return path;
			}
		}
		/* In no library directory: the directory is the root itself. */
		return path;
	}
	path[0] = '\0';
	return path;
}

const char *sim_root(void)
{
	const char *r;

	pthread_mutex_lock(&lock);
	if (root == NULL)
		root = find_root();
	r = root != NULL ? root : "";
	pthread_mutex_unlock(&lock);
	return r;
}

static int can_have(const char *path)
{
	int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	int why = errno;
	struct statfs fs;

	if (fd >= 0) {
		close(fd);
		return 1;
	}
	if (why == ENXIO || why == ENODEV || why == EROFS)
		return 1;
	/*
	 * On a file system without devices every node is refused. Those exist where
	 * a whole driver root is mounted, never where a container gets its devices.
	 */
	return why == EACCES && statfs(path, &fs) == 0 && (fs.f_flags & MOUNT_NODEV) != 0;
}

/*
 * Whether the node of that name can be had. Nodes are below the driver root, or,
 * where that has libraries only (GKE, Talos), in the machine's own /dev.
 */
static int node_visible(const char *format, unsigned long minor)
{
	char path[4096];
	int have = snprintf(path, sizeof path, "%s/dev", sim_root()), n;

	if (have <= 0 || (size_t)have >= sizeof path)
		return 0;
	if (access(path, F_OK) != 0)
		have = snprintf(path, sizeof path, "/dev");
	n = snprintf(path + have, sizeof path - have, format, minor);
	return n > 0 && (size_t)n < sizeof path - have && can_have(path);
}

int sim_gpu_visible(unsigned long minor)
{
	return node_visible("/nvidia%lu", minor);
}

int sim_cap_visible(unsigned long minor)
{
	return node_visible("/nvidia-caps/nvidia-cap%lu", minor);
}

__attribute__((destructor)) static void unload(void)
{
	sim_disconnect();
	sim_handles_free();
	free(root);
	root = NULL;
}
