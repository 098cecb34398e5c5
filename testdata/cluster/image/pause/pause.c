/* The first process of a pod's sandbox and of a node: it waits, and buries the
 * orphans that the kernel hands to the first process of a PID namespace. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { (void)signal; _exit(0); }

static void bury(int signal) {
	(void)signal;
	while (waitpid(-1, 0, WNOHANG) > 0) {}
}

int main(void) {
	struct sigaction ending = {.sa_handler = end};
	struct sigaction burying = {.sa_handler = bury, .sa_flags = SA_NOCLDSTOP};
	if (sigaction(SIGINT, &ending, 0) || sigaction(SIGTERM, &ending, 0) || sigaction(SIGCHLD, &burying, 0)) return 1;
	bury(SIGCHLD); /* those that died before the handler was there */
	for (;;) pause();
}
