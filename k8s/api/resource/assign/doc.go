// Package assign says which configuration each allocated device of a claim
// gets. It is a pure function of the claim:
//
//	groups, err := assign.Assign(claim, "gpu.nvidia.com", inventory.KindOf)
//	for _, g := range groups {
//		// g.Config applies to g.Results
//	}
//
// The rules, for the results and configurations of one driver:
//
//   - A claim's configurations come before those of its DeviceClasses, and
//     those before the defaults. Among equals the later one wins.
//   - A configuration without requests applies to all results. One that names
//     a request applies to the results of this request and, when the request
//     is a list of alternatives (firstAvailable), to all of its subrequests.
//     One that names a subrequest, "gpu/small", applies to this one only.
//   - A configuration fits devices of one kind: a GpuConfig fits GPUs, and so
//     on. A claim that names a request and gives it a configuration of the
//     wrong kind is refused. In all other cases a configuration that does not
//     fit is passed over, because its author could not know what would be
//     allocated: it came without requests, or through an alternative, or from
//     a class, for which the scheduler filled in the requests.
//   - A result with admin access looks at devices that other claims own, so no
//     configuration reaches it: setting up sharing or handing a device to VFIO
//     would change it under its owner. A claim that names such a request in a
//     configuration that would change something is refused.
//   - Every configuration of the driver must be valid, whether or not a result
//     ends up with it: a mistake is reported while somebody is looking.
//
// Nothing here can succeed later without a change of the claim, so every error
// but one that the caller's own kindOf returned is permanent.
package assign
