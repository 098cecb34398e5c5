# What can be done here. CI runs `make test` and nothing else.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

NODES   ?= 1
MACHINE ?= h100x8
K8S     ?= 1.37
CLUSTER ?= local

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)
BUILD   := build
ROOTFS  := $(BUILD)/rootfs
SIM     := $(BUILD)/sim
STAMP   := -X nvdra/roles/internal/process.version=$(VERSION) -X nvdra/roles/internal/process.commit=$(COMMIT)
LAUNCH  := cd testdata/cluster && go run .
# go-nvml declares functions of NVIDIA's that are deprecated; its compiler warnings are not ours.
export CGO_CFLAGS := -g -O2 -Wno-deprecated-declarations

.PHONY: help parts build rootfs image sim cluster reload cluster-down demo kind-demo test test-unit test-scripts test-cluster \
	lint golden bench device clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build the binary as build/nvdra
	go build -trimpath -ldflags "-s -w $(STAMP)" -o $(BUILD)/nvdra .

# The image is this directory: the binary with the few libraries it is linked
# to, and the hook, which runs on hosts that have other libraries or none and is
# therefore linked statically.
rootfs: build ## lay the image out as build/rootfs
	@mkdir -p $(ROOTFS)/usr/bin
	@install -m 755 $(BUILD)/nvdra $(ROOTFS)/usr/bin/nvdra
	go build -trimpath -tags netgo,osusergo -ldflags '-s -w -linkmode external -extldflags "-static -Wl,--no-warnings"' \
		-o $(ROOTFS)/usr/bin/nvidia-cdi-hook ./cdi/nvidia-cdi-hook
	@for lib in $$(ldd $(BUILD)/nvdra | grep -o '/[^ ]*'); do install -D -m 755 $$lib $(ROOTFS)$$lib; done

image: rootfs ## build the image with Docker, as localhost/nvdra:dev
	docker build -t localhost/nvdra:dev .

sim: ## build the simulated driver's files and gpusim as build/sim
	go run ./nvml/sim/gpusim build $(SIM)

cluster: rootfs sim ## start a cluster: NODES=1 MACHINE=h100x8 K8S=1.37
	@$(LAUNCH) up --nodes $(NODES) --machine $(MACHINE) --k8s $(K8S)
	@$(LAUNCH) load ../../$(ROOTFS) --name localhost/nvdra:dev --entrypoint /usr/bin/nvdra
	@$(LAUNCH) kubectl apply -f ../manifests/install
	@$(LAUNCH) kubectl -n nvdra rollout status daemonset/nvidia-dra-driver-kubelet-plugin --timeout=300s

reload: rootfs ## give a running cluster the image as the sources are now
	@$(LAUNCH) load ../../$(ROOTFS) --name localhost/nvdra:dev --entrypoint /usr/bin/nvdra
	@$(LAUNCH) kubectl -n nvdra rollout restart daemonset/nvidia-dra-driver-kubelet-plugin
	@$(LAUNCH) kubectl -n nvdra rollout status daemonset/nvidia-dra-driver-kubelet-plugin --timeout=300s

cluster-down: ## stop the cluster and remove everything it made
	@$(LAUNCH) down

demo: demo-$(CLUSTER) ## show on a cluster what nvdra does; CLUSTER=kind where Docker and kind work

demo-local: cluster $(BUILD)/demo
	@printf '#!/bin/sh\nexec "$$(dirname "$$0")/cluster" kubectl "$$@"\n' >$(BUILD)/kubectl && chmod +x $(BUILD)/kubectl
	@$(BUILD)/demo --kubectl $(BUILD)/kubectl --smi "$(BUILD)/cluster exec node-1 nvidia-smi" \
		--next "Go on:  build/kubectl get pods -A    (build/cluster status says where the kubeconfig is)\nStop:   make cluster-down"

.PHONY: $(BUILD)/demo
$(BUILD)/demo:
	@cd testdata/cluster && go build -o ../../$(BUILD)/ . ./demo

# Where Docker and kind work. The images are written as archives, which kind loads.
demo-kind: rootfs sim $(BUILD)/demo
	kind create cluster --name nvdra
	$(BUILD)/cluster load $(ROOTFS) --name localhost/nvdra:dev --entrypoint /usr/bin/nvdra -o $(BUILD)/nvdra.tar
	$(BUILD)/cluster load $(SIM) --name localhost/gpusim:dev --entrypoint /gpusim -o $(BUILD)/gpusim.tar
	for archive in $(BUILD)/nvdra.tar $(BUILD)/gpusim.tar $$($(BUILD)/cluster images | grep workload); do kind load image-archive --name nvdra $$archive; done
	kubectl label nodes --all --overwrite nvidia.com/gpu.present=true
	kubectl apply -f testdata/manifests/simulator -f testdata/manifests/install
	kubectl -n gpusim rollout status daemonset/gpusim --timeout=180s
	kubectl -n nvdra rollout status daemonset/nvidia-dra-driver-kubelet-plugin --timeout=180s
	$(BUILD)/demo --smi "docker exec nvdra-control-plane /run/nvidia/driver/usr/bin/nvidia-smi" --next "Stop:   kind delete cluster --name nvdra"

test: test-unit test-scripts test-cluster ## run every test; K8S=1.34 for the oldest supported Kubernetes

test-unit: lint ## run the tests that need no cluster
	go test $$(go list ./... | grep -v /e2e)
	cd testdata/cluster && go test ./...

parts: ## build Kubernetes, etcd, containerd and runc, which takes long once
	@$(LAUNCH) parts --k8s 1.37
	@test $(K8S) = 1.37 || { $(LAUNCH) parts --k8s $(K8S); }

test-scripts: parts ## run the built binary on simulated machines against a real API server
	go test ./roles/e2e -timeout 30m -args -test.parallel=4

test-cluster: parts ## run pods on a real cluster
	NVDRA_K8S=$(K8S) go test ./roles/e2e/cluster -v -timeout 90m

lint: ## check format and code
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo 'run gofmt -w on these files'; exit 1; }
	go vet ./...
	cd testdata/cluster && go vet ./...
	cd .ci/tools && go build -o ../../$(BUILD)/staticcheck honnef.co/go/tools/cmd/staticcheck
	$(BUILD)/staticcheck ./...

bench: rootfs sim ## measure start, prepare, pods, memory and API requests; QUICK=-quick for a short run
	go run ./roles/e2e/bench $(QUICK) -build $(BUILD)

golden: ## rewrite goldens; read the difference before you commit it
	go test ./cdi ./roles ./featuregates -update
	go test ./roles/e2e -update

device: ## run the contract suite on this machine's real driver, and read nothing else
	NVDRA_DEVICE_ROOT=$${NVDRA_DEVICE_ROOT:-/} go test -tags device -run TestHardware ./nvml/nvmltest

clean: ## remove what was built
	rm -rf $(BUILD)
