// Package e2e runs the scripts in testdata/scripts against the built program.
//
// A script is a test in a few lines that read like what a person would do. It
// gets a simulated machine with NVIDIA's driver (nvml/sim), a Node of its own in
// a real API server, a kubelet that speaks the real protocols on the real
// sockets, and allocations made by the code the scheduler uses. The program
// under test is the one that is shipped: built once, started as a process, told
// what it needs by flags and environment variables, with the token of its own
// service account. It cannot know that it is being tested.
//
//	machine h100x8
//	start gpu-plugin
//	eventually 20s devices =~ gpu-7
//	claim job gpu
//	prepare job
//	stdout '^gpu gpu-0 k8s.gpu.nvidia.com/claim=UID-gpu-0$'
//	kill gpu-plugin
//	start gpu-plugin
//	unprepare job
//	checkpoint
//	! stdout .
//
// There is one file for each verb, verb_<name>_test.go; its Detail has an
// example. Verbs that take no process mean the one called gpu-plugin.
//
//	go test ./roles/e2e                                   all scripts
//	go test ./roles/e2e -run TestScripts/gpuplugin/reboot one
//	go test ./roles/e2e -run TestScripts/gpuplugin/gpu -update
//
// The last one rewrites the files in testdata/scripts/golden that the script
// compares with. The API server and etcd are those of the local cluster
// (testdata/cluster); its launcher builds them the first time. NVDRA_PARTS may
// name directories, separated by colons, that have them already.
package e2e
