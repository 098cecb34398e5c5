// The local cluster of the tests: it builds Kubernetes and its parts from their
// modules and runs them on this machine. Nothing of it is in the product.
module nvdra.test/cluster

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	golang.org/x/sys v0.49.0
)
