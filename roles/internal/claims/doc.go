// Package claims prepares and unprepares ResourceClaims on a node: the part
// that is the same whatever a claim is for.
//
// A node plugin contributes two things. Its [Planner] turns an allocated claim
// into devices and [Step]s, and for each kind of step it has a [Handler] that
// can do and undo it. The [Engine] contributes everything else: it writes down
// what it is about to do before it does it, undoes a claim from what it wrote
// down and from nothing else, answers repeated calls alike, refuses a device
// that another claim has, writes the claim's CDI spec, and puts things in order
// after a crash, a reboot, a damaged file, or a claim that vanished.
//
//	engine, err := claims.Open(claims.Config{
//		Dir:      "/var/lib/kubelet/plugins/gpu.nvidia.com/claims",
//		BootID:   bootID,
//		Planner:  planner,
//		Handlers: map[string]claims.Handler{"mig": mig, "timeslice": timeslice},
//		Specs:    specs, // a *cdi.Store
//	})
//	err = engine.Restore(ctx)                  // once, before the first call of kubelet
//	devices, err := engine.Prepare(ctx, claim) // any number at once
//	err = engine.Unprepare(ctx, ref)
//	err = engine.Run(ctx, reader, onError)     // sweeps until ctx ends
//
// It knows no GPU, no feature gate and no API server. README.md has the states
// a claim goes through, the file format, and what is written to disk when.
//
// Two processes may work in one directory, as they do during a rolling update.
package claims
