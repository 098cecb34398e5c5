// Package cluster runs the scripts in testdata/scripts/cluster on a real
// Kubernetes cluster with simulated GPUs: API server, scheduler, controller
// manager, kubelet and containerd as they are, the product as an image,
// installed as a user installs it, and judged by what pods see.
//
// The cluster is that of testdata/cluster. It is started for the test run and
// taken down afterwards. NVDRA_K8S is the minor version of Kubernetes to run,
// 1.37 if it is not set. With NVDRA_KEEP=1 the cluster stays, to look at it; the
// next run takes it down first.
//
//	go test ./roles/e2e/cluster -run TestScripts/rolling_update -v
//
// Verbs beyond those of rsc.io/script:
//
//	kubectl ARGS…              run kubectl as the administrator
//	node NODE CMD…             run a command on a node
//	gpusim NODE VERB…          do something to the node's simulated driver
//	restart-kubelet NODE       end kubelet and start it again
//	eventually LIMIT VERB… [=~ REGEXP]   try a verb until it does what it should
package cluster
