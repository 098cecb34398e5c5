// Package featuregates says which features are switched on.
//
// A Set is a plain value: it is parsed once where the process starts, checked
// with Validate, and passed to whoever decides something by it. There is no
// global state and nothing here logs.
//
//	gates, err := featuregates.Parse(os.Getenv("FEATURE_GATES"), flagValue)
//	if err == nil {
//		err = gates.Validate()
//	}
//	if gates.Enabled(featuregates.DynamicMIG) { … }
//
// To add a gate, add its constant and its row in Known, then run
// `go test ./featuregates -update` to bring README.md up to date.
package featuregates

// A Gate is the name of one feature, as users write it.
type Gate string

// The gates, in the order of Known.
const (
	ComputeDomainCliques      Gate = "ComputeDomainCliques"
	ConsumableShares          Gate = "ConsumableShares"
	CrashOnNVLinkFabricErrors Gate = "CrashOnNVLinkFabricErrors"
	DeviceMetadata            Gate = "DeviceMetadata"
	DynamicMIG                Gate = "DynamicMIG"
	IMEXDaemonsWithDNSNames   Gate = "IMEXDaemonsWithDNSNames"
	MPSSupport                Gate = "MPSSupport"
	NVMLDeviceHealthCheck     Gate = "NVMLDeviceHealthCheck"
	PassthroughSupport        Gate = "PassthroughSupport"
	TimeSlicingSettings       Gate = "TimeSlicingSettings"
	ContextualLogging         Gate = "ContextualLogging"
	LoggingAlphaOptions       Gate = "LoggingAlphaOptions"
	LoggingBetaOptions        Gate = "LoggingBetaOptions"
)

// AllAlpha and AllBeta stand for every gate of their stage that is not set by
// its own name. They are accepted by Parse and are never a member of a Set.
const (
	AllAlpha Gate = "AllAlpha"
	AllBeta  Gate = "AllBeta"
)

// A Stage says how settled a feature is.
type Stage string

// The stages. There is no stage for finished features: their gate goes away.
const (
	Alpha Stage = "alpha" // off unless asked for; may change or go away
	Beta  Stage = "beta"  // on unless switched off
)

// A Spec is all there is to know about one gate.
type Spec struct {
	Gate       Gate
	Stage      Stage
	Default    bool
	Requires   []Gate // must be on when this one is
	Excludes   []Gate // must be off when this one is; written on one side only
	OnlyByName bool   // AllAlpha and AllBeta do not touch it
	Doc        string // one sentence for the README and for people
}

// Known is the single place a gate is declared.
var Known = []Spec{
	{Gate: ComputeDomainCliques, Stage: Beta, Default: true, Requires: []Gate{IMEXDaemonsWithDNSNames},
		Doc: "Daemons of a compute domain find each other through ComputeDomainClique objects rather than through the ComputeDomain's status."},
	{Gate: ConsumableShares, Stage: Alpha,
		Doc: "Several claims may hold the same GPU at once, each with a share of its memory or a counted place."},
	{Gate: CrashOnNVLinkFabricErrors, Stage: Beta, Default: true,
		Doc: "A GPU whose NVLink fabric state is broken stops the compute domain plugin; switched off, the GPU counts as having no fabric."},
	{Gate: DeviceMetadata, Stage: Alpha, Requires: []Gate{PassthroughSupport},
		Doc: "Write device metadata files (KEP-5304) that tell a container the attributes of its VFIO devices."},
	{Gate: DynamicMIG, Stage: Alpha, Excludes: []Gate{PassthroughSupport, NVMLDeviceHealthCheck, MPSSupport},
		Doc: "Advertise every possible MIG device and create the chosen one when a claim is prepared."},
	{Gate: IMEXDaemonsWithDNSNames, Stage: Beta, Default: true,
		Doc: "IMEX daemons address each other by stable DNS names, so that a daemon may move or restart without the others restarting."},
	{Gate: MPSSupport, Stage: Alpha,
		Doc: "Claims may ask for the MPS sharing strategy; a control daemon is started for each such claim."},
	{Gate: NVMLDeviceHealthCheck, Stage: Alpha,
		Doc: "Watch NVML events and put a taint on a device that reports a critical error or is lost."},
	{Gate: PassthroughSupport, Stage: Alpha, Excludes: []Gate{NVMLDeviceHealthCheck},
		Doc: "Advertise whole GPUs for virtual machines and bind them to vfio-pci when a claim is prepared."},
	{Gate: TimeSlicingSettings, Stage: Alpha,
		Doc: "Claims may choose the time slice of a shared GPU."},
	{Gate: ContextualLogging, Stage: Beta, Default: true, OnlyByName: true,
		Doc: "Accepted so that existing settings keep working; has no effect."},
	{Gate: LoggingAlphaOptions, Stage: Alpha,
		Doc: "Accepted so that existing settings keep working; has no effect."},
	{Gate: LoggingBetaOptions, Stage: Beta, Default: true,
		Doc: "Accepted so that existing settings keep working; has no effect."},
}

// index finds the row of a gate; -1 when there is none.
func index(g Gate) int {
	for i := range Known {
		if Known[i].Gate == g {
			return i
		}
	}
	return -1
}
