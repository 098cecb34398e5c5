// Bench measures the GPU plugin as a user meets it: the production binary in
// its image, a real cluster of one node, eight simulated GPUs.
//
//	go run ./roles/e2e/bench          # under eight minutes
//	go run ./roles/e2e/bench -quick   # under two, with fewer samples and no crash
//
// It prints one table. Beside every figure of ours stands that of a plugin that
// does nothing: the same library with the same options, one small CDI file per
// claim, no checkpoint, no driver, no sync of anything. The two run at the same
// time and are measured alternately, so that their ratio says something even on a
// machine that is busy with other things. No figure fails the program; it fails
// when something cannot be measured.
//
// The phases, in order:
//
//	pods.go       from creating a pod to its container running, with a claim and without
//	prepare.go    prepare and unprepare through the plugin's socket, one by one and eight at once
//	disk.go       what the disk takes to keep one file, for comparison
//	idle.go       memory after that; processor time while nothing happens
//	crash.go      kill -9 in mid-prepare: how long the waiting pods wait
//	start.go      from the start of the process to its devices visible in the API server
//	requests.go   what the API server is asked at start, per claim, and idle
//
// Up to the crash the plugin runs in its pod, as installed. After that it is
// started by hand, in the same image and with the same mounts, so that the
// moment of its start is known and its requests can be led through a counter.
package main
